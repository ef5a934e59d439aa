"""The names under which Spark finds our live sources and sinks."""

from __future__ import annotations

from pyspark.sql import SparkSession

from nearcast.pipeline.streaming.data_sources import FeedSource, SpoolSource
from nearcast.pipeline.streaming.mqtt_format import MqttSource

LIVE_FORMATS = (MqttSource, FeedSource, SpoolSource)


def register_live_formats(spark: SparkSession) -> None:
    """Register `mqtt`, `nearcast-feed` and `nearcast-spool` with a session."""
    for source in LIVE_FORMATS:
        spark.dataSource.register(source)
