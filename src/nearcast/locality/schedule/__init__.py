"""Plans that change by the clock: hours and weekdays with plans of their own, where that pays."""
