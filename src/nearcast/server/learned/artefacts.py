"""What the pipeline learned, as one node uses it: this is the only place that loads it.

| artefact | where it comes from | when it is loaded |
|---|---|---|
| policies | `policies.json` in the data directory, or the cluster | every 10 s and on SIGHUP |
| plan | the cluster | when shared, as soon as no other change of plans is under way |
| experience | `retained-experience.json`, which the node writes itself | at the start |
| schedule | the cluster | when shared; its changes of plan are made by the clock |
| histograms | the directory `[network] histograms`, or the cluster | as policies |

An artefact that cannot be read is refused as a whole and logged; the old one stays in force.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.broker import Broker
from nearcast.model.errors import (
    EnvironmentProblem,
    FileFormatError,
    KeyInUseError,
    MisuseError,
)
from nearcast.server.learned import experience_file
from nearcast.server.learned.histogram_files import HistogramFiles
from nearcast.server.learned.policy_file import FILE_NAME, PolicyFile

if TYPE_CHECKING:
    from nearcast.cluster.cluster import Cluster
    from nearcast.locality.registration.leaf_loads import PlanProposal
    from nearcast.locality.registration.plan_assignment import NamedPlan
    from nearcast.locality.schedule.plan_schedule import ScheduledPlans
    from nearcast.overlay import Density
    from nearcast.retained import Policies
    from nearcast.server.cluster.nats_settings import Shared, SharedSettings
    from nearcast.server.loop_batches import LoopBatches

log = logging.getLogger("nearcast.network")

CHECK_S = 10.0
"""How often files are checked for a newer version."""
_RETRY_S = 2.0
_REFUSED = {
    "plan": "a plan was refused, the old one stays: %s",
    "policies": "policies were refused, the old ones stay: %s",
    "histograms": "histograms were refused, the old ones stay: %s",
    "schedule": "a schedule of plans was refused, the old one stays: %s",
}


class LearnedArtefacts:
    """The policies, the plan and the histograms of one node."""

    def __init__(
        self,
        node: Broker,
        now_ms: Callable[[], int],
        directory: Path,
        own: Path | None = None,
    ) -> None:
        """`directory` has the policies, `own` what the node learned itself, if elsewhere."""
        self._node = node
        self._now_ms = now_ms
        self._turns: LoopBatches | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._policies: PolicyFile | None = None  # None if no topic asks for policies
        self._experience: experience_file.ExperienceFile | None = None
        holding = node.deferred_retained
        if holding is not None:
            self._policies = PolicyFile(directory / FILE_NAME)
            if node.is_journaled:
                path = (own or directory) / experience_file.FILE_NAME
                self._experience = experience_file.ExperienceFile(path, holding)
        self._histograms = HistogramFiles(None, ())
        self._digests: dict[str, str] = {}  # of the cluster's values, by name
        self._signed_ms: dict[str, int] = {}  # when the last value of each name was signed
        self._cluster: Cluster | None = None
        self._plan: NamedPlan | None = None
        self._plan_version = 0  # of the shared value that has the plan
        self._shared: SharedSettings | None = None
        self.scheduled: ScheduledPlans | None = None  # None: plans do not change by the clock

    def densities(self, directory: Path | None) -> dict[str, Density]:
        """Return the density of each space that has a histogram in a directory, from now on."""
        self._histograms = HistogramFiles(directory, [one.space for one in self._node.spaces])
        return self._histograms.densities

    @property
    def plan(self) -> NamedPlan | None:
        """The plan that the cluster shares; None without one."""
        return self._plan

    # --- files ------------------------------------------------------------------------------

    def load_changed(self) -> None:
        """Load the files that have changed."""
        if self._policies is not None:
            self._use_policies(self._policies.take_changed())
        if self._histograms.load_changed():
            self._use_histograms()

    def restore(self) -> None:
        """Use what the node had learned itself before it was started again."""
        if self._experience is not None:
            self._experience.load()

    def watch(self, turns: LoopBatches) -> None:
        """Load files again whenever they change, until `stop`; write what the node learned."""
        self._turns = turns
        self.load_changed()
        if self._experience is not None:
            self._experience.save_if_due(self._now_ms())
        self._alarm = asyncio.get_running_loop().call_later(CHECK_S, self.watch, turns)

    def stop(self) -> None:
        """Check files no longer; write what the node learned."""
        if self._alarm is not None:
            self._alarm.cancel()
            if self._experience is not None:
                self._experience.save()

    def _use_policies(self, policies: Policies | None) -> None:
        if policies is not None:
            self._node.load_policies(policies, self._now_ms())
            self._schedule()

    def _use_histograms(self) -> None:
        if self._cluster is not None:
            self._cluster.use_densities(self._histograms.densities, self._now_ms())
            self._schedule()

    def _schedule(self) -> None:
        if self._turns is not None:
            self._turns.schedule()

    # --- the cluster ------------------------------------------------------------------------

    def follow(
        self, shared: SharedSettings, cluster: Cluster
    ) -> Iterator[Coroutine[None, None, None]]:
        """Yield what keeps this node's artefacts those of the cluster, until cancelled."""
        from nearcast.server.cluster.nats_settings import HISTOGRAMS, PLAN, POLICIES, SCHEDULE

        self._cluster, self._shared = cluster, shared
        yield _follow(shared, PLAN, self._current(self.take_plan))
        yield _follow(shared, SCHEDULE, self._current(self.take_schedule))
        yield _follow(shared, POLICIES, self._current(self.take_policies))
        yield _follow(shared, HISTOGRAMS, self._current(self.take_histograms))

    def _current(self, take: Callable[[Shared], None]) -> Callable[[Shared], None]:
        """Return `take`, refusing a signed value that was replaced: a stranger may write it again.

        Values without a signature are believed as they come.
        """
        from nearcast.server.cluster.nats_settings import SignedVersion

        def take_newer(shared: Shared) -> None:
            head = shared.head
            if isinstance(head, SignedVersion):
                last_ms = self._signed_ms.get(head.name, 0)
                if head.at_ms < last_ms:
                    raise FileFormatError(
                        f"version {head.version}, signed {(last_ms - head.at_ms) / 1000:.0f} s "
                        "before the last one",
                        where=f"network settings, {head.name}",
                        todo="Share it again, if it is meant.",
                    )
                self._signed_ms[head.name] = head.at_ms
            take(shared)

        return take_newer

    def take_plan(self, shared: Shared) -> None:
        """Take a plan that the cluster shares."""
        from nearcast.locality.registration.plan_assignment import NamedPlan

        plan = NamedPlan.from_bytes(shared.data)
        self._plan, self._plan_version = plan, shared.head.version
        self.use_plan()

    async def share_proposal(self, proposal: PlanProposal) -> None:
        """Share the plan that this node proposes, unless another plan was shared meanwhile."""
        plan, last, shared = proposal.plan, self._plan, self._shared
        if shared is None or last is None or plan.version != last.version + 1:
            known = 0 if last is None else last.version
            log.info(
                "plan %d is not proposed: the network shares plan %d already", plan.version, known
            )
            return
        from nearcast.locality.layout.changes import plan_diff
        from nearcast.server.cluster.nats_settings import PLAN

        changes = "; ".join(plan_diff(last.plan, plan.plan).lines()[1:])
        try:
            await shared.put(
                PLAN, plan.to_bytes(), at_ms=self._now_ms(), expected=self._plan_version
            )
        except KeyInUseError:
            log.info("plan %d is not proposed: another one was shared meanwhile", plan.version)
        except EnvironmentProblem as problem:
            log.warning("plan %d could not be shared: %s", plan.version, problem)
        else:
            log.info("plan %d is proposed: %s. %s", plan.version, proposal.reason, changes)

    def use_plan(self) -> None:
        """Start to use a newer plan; it waits while another change is under way."""
        plan, cluster = self._plan, self._cluster
        if plan is None or cluster is None or plan.version <= max(cluster.plans):
            return
        if cluster.use_plan(plan, self._now_ms()):
            log.info("plan %d is taken up", plan.version)
            for name in sorted(set(plan.nodes).difference([cluster.name], cluster.peers)):
                log.warning(
                    "plan %d names node %s, which is not known here: another node stands in for it",
                    plan.version,
                    name,
                )
            self._schedule()

    def take_schedule(self, shared: Shared) -> None:
        """Take a schedule of plans that the cluster shares, or its end."""
        from nearcast.locality.schedule.plan_schedule import ScheduledPlans

        self.scheduled = ScheduledPlans.from_bytes(shared.data)

    def take_policies(self, shared: Shared) -> None:
        """Take policies that the cluster shares; a policy file of this node has precedence."""
        if not self._is_new(shared):
            return
        if self._policies is None:
            log.info("the network shares policies; no [[retained]] block here asks for them")
            return
        self._use_policies(self._policies.take_shared(shared.data))

    def take_histograms(self, shared: Shared) -> None:
        """Take histograms that the cluster shares; a file of this node has precedence."""
        if self._is_new(shared):
            self._histograms.take_shared(shared.data)
            self._use_histograms()

    def _is_new(self, shared: Shared) -> bool:
        """Return whether a value is another one: a new connection reports the old one again."""
        before = self._digests.get(shared.head.name)
        self._digests[shared.head.name] = shared.head.digest
        return before != shared.head.digest


async def _follow(settings: SharedSettings, name: str, take: Callable[[Shared], None]) -> None:
    """Take each shared value of a name; an invalid one is refused, and the old one stays."""
    while True:
        watch = settings.watch(name)
        try:
            async for shared in watch:
                try:
                    if isinstance(shared, FileFormatError):
                        raise shared
                    take(shared)
                except (FileFormatError, MisuseError) as problem:
                    log.warning(_REFUSED[name], problem)
        except EnvironmentProblem as problem:
            log.warning("the network's '%s' cannot be read: %s", name, problem)
        finally:
            await watch.aclose()
        await asyncio.sleep(_RETRY_S)
