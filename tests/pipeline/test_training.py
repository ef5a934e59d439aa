"""Policies out of a log: exact at the log's rates, shared by like topics, and never lost."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from nearcast.eventlog import LOG_TABLES
from nearcast.eventlog.segments import VERSION, VERSION_KEY
from nearcast.model.errors import FileFormatError, MisuseError
from nearcast.pipeline.jobs.train import (
    RateGroup,
    Trained,
    TrainingRules,
    last_policies,
    on_grid,
    range_of,
    save_trained,
    share_earned,
    train,
)
from nearcast.pipeline.tables.transaction import read_table
from nearcast.retained import (
    DecisionProcess,
    Fit,
    Mode,
    Policies,
    Rates,
    TopicPolicy,
    TopicSetting,
    Weights,
    attainable_gain,
    policies_from_text,
    policies_to_text,
    read_policies,
    share_of_gain,
    shipped_policy,
    solve,
)

START_MS = 1_714_557_600_000
WEIGHTS = Weights(0.7, 5.0)
LEARNED = TopicSetting(Mode.LEARNED, WEIGHTS, 10.0)
SETTINGS = [("plant/off/#", TopicSetting()), ("plant/#", LEARNED)]


def write_part(root: Path, table: str, columns: dict[str, list[object]]) -> None:
    schema = LOG_TABLES[table]
    count = len(columns["sequence"])
    usual = {"node": "n", "publisher": "p", "qos": 0, "retain": True, "payload": b"1",
             "lifetime_ms": None, "limited": False, "way": "client", "no_local": False,
             "restored": False}  # fmt: skip
    rows = {name: columns.get(name, [usual.get(name)] * count) for name in schema.names}
    arrays = [pa.array(rows[name], schema.field(name).type) for name in schema.names]
    (root / table).mkdir(parents=True, exist_ok=True)
    whole = pa.Table.from_arrays(arrays, schema=schema.with_metadata({VERSION_KEY: VERSION}))
    pq.write_table(whole, root / table / "part-n-00000001.parquet")


def write_log(root: Path, per_s: dict[str, float], seconds: int = 200) -> str:
    """Write a log in which each topic publishes at a steady rate, and people come and go."""
    topics: list[object] = []
    instants: list[object] = []
    for topic, rate in per_s.items():
        count = int(rate * seconds) + 1
        topics += [topic] * count
        instants += [START_MS + round(i * 1000 / rate) for i in range(count)]
    numbers: list[object] = list(range(1, len(topics) + 1))
    write_part(root, "events", {"sequence": numbers, "t": instants, "topic": topics})
    changes: dict[str, list[object]] = {"sequence": [], "t": [], "client": [], "filter": [],
                                        "added": []}  # fmt: skip
    for client in range(10):
        for added in (True, False):
            number = len(numbers) + len(changes["t"]) + 1
            t = START_MS + 10_000 * client + (0 if added else 50_000)
            row = (number, t, f"c{client}", "plant/+", added)
            for column, value in zip(changes.values(), row, strict=True):
                column.append(value)
    write_part(root, "subscriptions", changes)
    return str(root)


QUICK = {f"plant/{i}": 0.5 + 0.001 * i for i in range(12)} | {"plant/20": 2.0, "plant/21": 5.0}
REST = {"plant/slow": 0.03, "plant/off/1": 2.0, "other": 2.0}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_log(tmp_path_factory.mktemp("log"), QUICK | REST)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="module")
def trained(spark: SparkSession, log: str, out: str) -> Trained:
    return train(spark, [log], out, SETTINGS)


@pytest.mark.spark
def test_topics_on_which_someone_may_wait_get_the_exact_table_for_rates_like_theirs(
    trained: Trained,
):
    assert set(trained.policies.topics) == set(QUICK)
    for topic, policy in trained.policies.topics.items():
        true = Policies().process(Rates(QUICK[topic], 10 / 200, 1 / 50), WEIGHTS)
        assert policy.rates.publish == pytest.approx(true.rates.publish, rel=0.025)
        assert policy.rates.leave == pytest.approx(true.rates.leave, abs=0.01)
        assert policy.rates.subscribe == pytest.approx(0.05, rel=0.01)
        exact = solve(Policies().process(policy.rates, WEIGHTS)).actions
        assert (policy.actions == exact).all()
        if attainable_gain(true) > 1e-6:
            assert share_of_gain(true, policy.actions) > 0.995


@pytest.mark.spark
def test_like_topics_share_a_solution(trained: Trained):
    assert trained.topics == trained.tables == len(QUICK)
    assert trained.groups < 5
    tables = {policy.flat for policy in trained.policies.topics.values()}
    assert len(tables) <= trained.groups


@pytest.mark.spark
def test_the_policy_for_all_stays_where_it_is_good(trained: Trained):
    assert trained.policies.general is shipped_policy()
    assert "kept" in trained.general
    assert trained.general_share is not None
    assert trained.general_share > 0.99
    assert trained.is_new


@pytest.mark.spark
def test_what_is_written_is_what_a_broker_reads(
    spark: SparkSession, log: str, out: str, trained: Trained, tmp_path: Path
):
    path = tmp_path / "data" / "policies.json"
    save_trained(trained, path)
    read = read_policies(path)
    assert policies_to_text(read) == policies_to_text(trained.policies)
    assert read_table(spark, f"{out}/topic_policies").count() == len(QUICK)

    again = train(spark, [log], out, SETTINGS, last=last_policies(path))
    assert (again.is_new, again.changed) == (False, 0)
    before = path.stat().st_mtime_ns
    save_trained(again, path)
    assert path.stat().st_mtime_ns == before


@pytest.mark.spark
def test_tables_of_topics_that_were_silent_are_kept_unless_their_setting_has_changed(
    spark: SparkSession, log: str, tmp_path: Path
):
    process = DecisionProcess(Rates(), WEIGHTS)
    old = TopicPolicy(process.always_wait(), process.rates, WEIGHTS)
    dearer = replace(old, weights=Weights(0.7, 6.0))
    topics = {"plant/silent": old, "plant/0": old, "plant/dearer": dearer, "gone": old,
              "plant/off/2": old}  # fmt: skip
    last = Policies(general=None, topics=topics)
    rules = TrainingRules(most_topics=3, refit="never")
    done = train(spark, [log], str(tmp_path), SETTINGS, rules, last)
    # Newcomers are alike: the quickest topics go first. "plant/0" keeps what it had.
    assert set(done.policies.topics) == {
        "plant/20",
        "plant/21",
        "plant/11",
        "plant/0",
        "plant/silent",
    }
    assert done.policies.topics["plant/silent"].flat == old.flat
    assert (done.kept, done.tables, done.policies.general) == (2, 3, None)


@pytest.mark.spark
def test_a_policy_for_all_is_fitted_where_there_is_none(
    spark: SparkSession, log: str, tmp_path: Path
):
    small = Fit(topics=60, states_per_topic=50, hidden=8, rounds=1_500)
    done = train(spark, [log], str(tmp_path), SETTINGS, TrainingRules(fit=small), Policies())
    assert done.general == "fitted to these rates"
    assert done.policies.general is not None
    low, high = done.policies.general.trained.publish
    assert low < 0.5
    assert high > 5.0
    assert done.general_share is not None
    assert done.general_share > 0.8
    text = policies_to_text(done.policies)
    assert policies_to_text(policies_from_text(text)) == text


@pytest.mark.spark
def test_one_topic_gets_its_table_and_the_policy_for_all_stays(spark: SparkSession, tmp_path: Path):
    log = write_log(tmp_path / "log", {"plant/1": 1.0})
    done = train(spark, [log], str(tmp_path), SETTINGS, TrainingRules(refit="always"))
    assert set(done.policies.topics) == {"plant/1"}
    assert "one topic says too little" in done.general
    assert done.policies.general is shipped_policy()


@pytest.mark.spark
def test_slow_topics_change_nothing(spark: SparkSession, tmp_path: Path):
    log = write_log(tmp_path / "log", {"plant/1": 0.01, "plant/2": 0.02}, seconds=2_000)
    last = Policies(general=shipped_policy())
    done = train(spark, [log], str(tmp_path), SETTINGS, last=last)
    assert (done.tables, done.is_new, done.general_share) == (0, False, None)


@pytest.mark.spark
def test_a_log_without_events_and_settings_without_learning_are_said(
    spark: SparkSession, log: str, tmp_path: Path
):
    with pytest.raises(MisuseError, match="learned"):
        train(spark, [log], str(tmp_path), [("plant/#", TopicSetting())])
    write_part(tmp_path / "log", "events", {"sequence": [], "t": [], "topic": []})
    with pytest.raises(MisuseError, match="an empty log"):
        train(spark, [str(tmp_path / "log")], str(tmp_path / "out"), SETTINGS)
    assert not (tmp_path / "out").exists()


def test_policies_of_another_version_are_refused_and_stay(tmp_path: Path):
    path = tmp_path / "policies.json"
    assert last_policies(path) is None
    bad = policies_to_text(Policies()).replace('"version": 1', '"version": 9')
    path.write_text(bad)
    with pytest.raises(FileFormatError, match="move it away"):
        last_policies(path)
    assert path.read_text() == bad


def test_rounding_rates_to_the_grid_costs_next_to_nothing():
    rng = np.random.default_rng(3)
    for publish, leave in zip(rng.uniform(0.1, 3.0, 40), rng.uniform(0.0, 0.5, 40), strict=True):
        true = DecisionProcess(Rates(publish, 0.2, leave), Weights(rng.uniform(0.2, 0.9), 5.0))
        if attainable_gain(true) < 1e-3:
            continue
        p, l = round(np.log2(publish) * 16), round(np.sqrt(leave) * 40)  # noqa: E741
        rounded = on_grid(p, l)
        assert rounded.publish == pytest.approx(publish, rel=0.022)
        assert np.sqrt(rounded.leave) == pytest.approx(np.sqrt(leave), abs=0.0126)
        table = solve(true.varied(rates=rounded)).actions
        assert share_of_gain(true, table) > 0.99


def test_the_share_earned_counts_topics():
    base = Policies(general=shipped_policy())
    general = shipped_policy()
    hopeless = RateGroup(Rates(0.01, 0.2, 0.0), Weights(1.0, 5.0), 1_000)
    assert share_earned(general, [hopeless], base) is None
    good = RateGroup(Rates(0.6, 0.2, 0.1), WEIGHTS, 3)
    found = share_earned(general, [hopeless, good], base)
    process = base.process(good.rates, WEIGHTS)
    table = general.table(good.rates, WEIGHTS, whole_steps=False)
    assert found == pytest.approx(share_of_gain(process, table))


def test_the_range_of_a_fit_holds_all_groups():
    groups = [
        RateGroup(Rates(0.5, 0.1, 2.0), WEIGHTS, 1),
        RateGroup(Rates(7.0, 0.1, 0.0), WEIGHTS, 1),
    ]
    found = range_of(groups)
    assert found.publish[0] < 0.5
    assert found.publish[1] > 7.0
    assert found.leave == (0.0, 2.0)
