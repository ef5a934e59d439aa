"""The texts of the report for each paper: question, method, what differs and why, and more.

A cause is written for one verdict. It is printed only where a run gives that verdict; where it
gives the other one, the report says that no cause is known (`cause_of`). No measured value is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nearcast.papers.form import Claim
from nearcast.papers.qr_network.claims import READINGS as R_ONLY


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a claim holds, or why it does not."""

    holds: bool
    text: str


@dataclass(frozen=True, slots=True)
class PaperText:
    """The text around a paper's figures."""

    title: str
    question: str
    method: str
    setting: str
    beyond: str
    causes: Mapping[tuple[str, str], Cause] = field(default_factory=dict)
    beyond_saving: Mapping[str, str] = field(default_factory=dict)
    """By claim: why no reading of what the paper leaves open makes it hold."""


def cause_of(story: PaperText, claim: Claim) -> str:
    """Return the known cause of a verdict; empty where a claim holds and needs none."""
    known = story.causes.get((claim.id, claim.variant))
    if known is not None and known.holds == claim.holds:
        return known.text
    if known is not None:
        came = "hold" if claim.holds else "not hold"
        return (
            f"Unexplained: in this run the claim does {came}, and the cause that is on record "
            "was found for the other verdict."
        )
    return "" if claim.holds else "No cause has been found yet."


def _no(text: str) -> Cause:
    return Cause(holds=False, text=text)


def _yes(text: str) -> Cause:
    return Cause(holds=True, text=text)


_FOLLOWS, _PACKED = R_ONLY["r"], R_ONLY["r-packed"]

_QR = PaperText(
    "A broker network laid out by how people move",
    "People move, and with them the subscription “what happens where I am”. How much is saved "
    "when the places where people linger get one broker each (R leaves), and only the rest is "
    "cut into quadrants (Q leaves)?",
    "Half of a crowd walks within slow regions, half crosses the space three times as fast, and "
    "events about rectangles are published all the time. Each layout (R only, Q only, Q+R) "
    "serves the same people and the same events. Brokers, handovers, messages, and messages sent "
    "again because somebody moved, are counted.",
    "The paper gives no thresholds, speeds, sizes or rounds, and does not say how R-only is run. "
    "We run it in two ways: an R-tree of the subscribers that follows them, since the paper "
    "calls its index dynamic; and slow regions and packed crowds laid out once. Brokers are "
    "leaves; the count with inner blocks stands beside it.",
    "Areas that straddle borders are registered wherever an event for them can arrive, so that "
    "each event is delivered once (the paper's rule would miss some). Handover and change of "
    "plan lose nothing, tried under loss, partitions and crashes. Slow regions are found in real "
    "trajectories; leaves are dealt to few brokers so that few paths are cut. The table shows "
    "how far the savings depend on what the paper leaves open.",
    {
        ("C0.1", _FOLLOWS): _no(
            "Q+R saves brokers, but R-only is not the fewest: a tree that follows people has to "
            "cover the fast half of the crowd with leaves of limited size, too. How much Q+R "
            "saves depends on how full the slow regions are, since a region is one leaf however "
            "many are in it; the paper's 35 % is one place in a wide range (table below)."
        ),
        ("C0.1", _PACKED): _no(
            "The order is the paper's: Q most, R fewest. The saving of Q+R is not “about 35 %” "
            "at this crowd: a slow region is one leaf however many people are in it, so the "
            "fuller the regions, the more is saved."
        ),
        ("C0.2", _FOLLOWS): _yes(
            "A tree that follows people reorganises as they move, and every change of a leaf "
            "sends events again; the more people, the more changes."
        ),
        ("C0.2", _PACKED): _no(
            "A layout that never changes sends again only when somebody crosses a border, and "
            "its borders are much like those of Q+R. The paper's steep curve needs an R-tree "
            "that is kept up with the subscribers."
        ),
        ("C0.3", _FOLLOWS): _no(
            "When leaves follow people, people also change leaf because leaves move: R-only then "
            "has the most handovers, not Q."
        ),
        ("C0.3", _PACKED): _yes(
            "Both layouts have one leaf per slow region, so milling about in it changes nothing. "
            "(The paper's R curves for C0.2 and C0.3 need two different ways to run R-only.)"
        ),
        ("C0.1", "regions hold at most 40, fan-out 4"): _yes(
            "A region with too many people is split like any broker with too many subscribers, as "
            "the paper's registration has it (step 3). Then the saving is the paper's."
        ),
        ("C0.4", f"{_FOLLOWS}, upkeep counted"): _yes(
            "Every rectangle that follows people costs a message when it changes: nearly all of "
            "R-only's in every round, the slow regions of Q+R, none of Q. The paper's own words "
            "for its figure: an index that changes dynamically uses unexpected messages."
        ),
        ("C0.4", f"{_PACKED}, upkeep counted"): _yes(
            "As above: the leaves of R-only and the slow regions of Q+R keep up with the box of "
            "their subscribers, quadrants need not."
        ),
        ("C0.4", _FOLLOWS): _no(
            "The order is the reverse. Messages to publish go along blocks, and Q has the most "
            "blocks. The paper's finding needs an index whose own upkeep is counted as messages."
        ),
        ("C0.4", _PACKED): _no(
            "The order is the reverse. Messages to publish go along blocks, and Q has the most "
            "blocks: fewer leaves make for fewer messages."
        ),
    },
)  # fmt: skip

_RANKED = PaperText(
    "The best matches first, on an interval skip list",
    "A publisher wants the k subscriptions that fit a value most precisely, not all that match. "
    "Can they be read off an interval skip list without touching the rest?",
    "Markers on each edge are kept in order of width, and a search walks down the list as usual. "
    "The paper pops the edges of its path from the lowest level up and takes markers until it "
    "has k; we merge the edges' sorted markers with a heap. Both are compared with a scan of all "
    "intervals.",
    "The paper has no measurements. Thirty to some thousand intervals, uniform or one attribute "
    "of paper 3's subscriptions; every interval lies in the skip list. Times are processor time of "
    "plain Python, the three ways in turn within one process.",
    "The exact order, for narrowness, distance from the centre, a weight given by the subscriber "
    "or any blend, chosen per publish; several attributes at once; open and closed ends; removal "
    "that puts other intervals' markers right. In the product old intervals leave the skip list "
    "for sorted runs, which makes additions an order of magnitude quicker.",
    {
        ("C1.2", "the paper's walk"): _no(
            "“Lower means narrower” is only a tendency: an interval that begins just inside a "
            "long upper edge leaves markers low down and can be the widest of all. Popped level "
            "by level, it comes first. Sorting the markers of each edge does not help across "
            "edges. No reading of what the paper leaves open saves the claim."
        ),
        ("C1.2", "the walk as printed"): _no(
            "The loop advances while the next key is less than the value, so the markers at a node "
            "that equals it are never read: besides the wrong order, matches are missing."
        ),
        ("C1.2", "the walk, p = 1/4"): _no(
            "Fewer nodes with several levels make fewer and longer lists. Within a list the order "
            "is right, so the walk errs a little less often, and still errs."
        ),
        ("C1.2", "the paper's walk, in any order"): _no(
            "The walk stops at k markers, whichever edges they are on: even the set is wrong."
        ),
        ("C1.2", "exact merge"): _yes(
            "Each edge's markers are sorted, so a heap over the edges of the path yields them in "
            "the exact order."
        ),
        ("C1.1", "the paper's walk"): _yes(
            "It stops at k markers, and reads no edge it does not need; it is the answer that is "
            "wrong."
        ),
        ("C1.1", "exact merge"): _yes(
            "Exactness costs one marker per marked edge of the path, which grows with the "
            "logarithm of the intervals, not with the matches."
        ),
    },
)  # fmt: skip

_COMPILED = (
    "All deliver at the instant that the definition promises, so only computation can differ, "
    "and that is microseconds beside tens of milliseconds. Compiled, they hardly differ: what "
    "Kshemkalyani–Singhal keeps per destination costs little, because rows that do not differ are "
    "copied, and calls and payload, which all pay alike, are much of it. In plain Python it had "
    "been several times as slow as ours."
)

_CAUSAL = PaperText(
    "Causal order within a lifetime, with little control information",
    "A message is worthless after its lifetime Δ and confusing before its cause. How few bytes "
    "of control information are enough, and what do they cost to compute?",
    "Groups of processes send at random over a channel that delays and loses. Five algorithms "
    "(ours, after the paper; the paper's own form; Kshemkalyani–Singhal; Prakash–Raynal–Singhal; "
    "Raynal–Schiper–Toueg) "
    "get the same traffic, bytes are those on the wire without the payload, and time is "
    "processor time. An oracle that knows only happened-before watches every send, arrival and "
    "delivery.",
    "The paper gives no Δ, delays, losses or group sizes: we take Δ = 0.25 s, 10 ms plus an "
    "exponential 40 ms, 1 % loss (and 20 % under the oracle). All five share one codec, one "
    "style of compiled kernels and the same rule of expiry, which flatters the older ones. The "
    "three others are written from general knowledge of their rules.",
    "A row that its destination already knows is not repeated, which Δ-causal order itself makes "
    "safe. Processes come and go, clocks may differ within a bound that is measured, a client "
    "takes its causal past along to another process. Below: what the same traffic looks like "
    "without ordering.",
    {
        ("C2.2", "random subsets"): _no(_COMPILED),
        ("C2.2", "fixed groups"): _no(_COMPILED),
        ("C2.1", "growth beyond, random subsets"): _no(
            "When a message goes to half of all processes, each of n rows lists some n/2 "
            "destinations, n/8 bytes as a set of bits: in the end that is quadratic."
        ),
        ("C2.1", "growth beyond, fixed groups"): _yes(
            "Who is in few groups hears of few others, however many there are."
        ),
        ("C2.3", "safety"): _yes(
            "Only after two mistakes of the listing were mended: the received message itself has "
            "to be entered, and at the right moment; read literally, causality through a third "
            "process is lost."
        ),
    },
)  # fmt: skip

_OVERLAY = PaperText(
    "Content-based publish/subscribe on a peer-to-peer R-tree",
    "Peers with similar subscriptions form groups, groups form a tree, and each group elects a "
    "member that carries events it may not want. Whom should it elect, and how much is carried "
    "in vain?",
    "Peers join one after the other and then publish equally often; subscriptions are boxes "
    "around a centre, events are points with a spread of their own. A group elects a random "
    "member (RS), the largest box (LVS), or the least cost by the paper's formula (CES). "
    "Overhead is what a peer receives without wanting it, and what it forwards.",
    "The costs R and F are not given: both are 1. Events enter at the root, since a rule that "
    "climbs only until a box contains the event misses overlapping groups. A quick run has fewer "
    "peers than the paper's 3,000, with the same fan-out.",
    "Peers may leave and crash, groups split, merge and repair; an event reaches each subscriber "
    "once. Elections by the exact cost, with event densities from histograms or from measured "
    "rates. The tables compare them, and say when the tree pays at all.",
    {
        ("C3.1", "total"): _no(
            "Overhead falls all the way. An event that matches nobody ends at the root or a few "
            "hosts below it, so events far out cost little, and there is no rise."
        ),
        ("C3.1", "per delivery"): _no(
            "Per delivery there is no minimum near 120 either: the cost of events that match "
            "nobody is spread over ever fewer deliveries, so the curve rises."
        ),
        ("C3.2", ""): _no(
            "CES and LVS are about equal, and RS costs less than twice as much. Charged once per "
            "event, a group's cost is a constant less what its host wants itself: LVS is the "
            "exact election by volume. CES adds a bonus for overlap, which its formula counted "
            "twice."
        ),
        ("C3.3", ""): _no(
            "A normal distribution with σ = 300 is not even: the middle is still denser, and "
            "clipping piles subscriptions up at the border, where wide events go."
        ),
        ("C3.4", "who bears it"): _no(
            "Every group has a host, and groups have some four members: about a quarter of the "
            "peers are hosts, and all of them bear something. The concentration in a tenth is "
            "there."
        ),
        ("C3.4", "σ = 300 against σ = 100"): _no(
            "With subscriptions spread wider, fewer hosts see any event at all. No reading of the "
            "costs or of the climb changes that."
        ),
        ("C3.5", ""): _yes(
            "It depends on repetition: every first visit in vain costs an answer, and only "
            "visits in vain are saved. Where each event comes once or twice a cache costs more "
            "than it saves."
        ),
        ("C3.6", ""): _yes(
            "It holds per delivery. In total, dense subscriptions have more overhead, because "
            "they get more events."
        ),
    },
    {
        "C3.1": "Whatever receiving and forwarding cost, and however an event climbs: an event "
        "that matches nobody ends a few hosts below the root, so wide events cost less than "
        "narrow ones.",
    },
)  # fmt: skip

_RETAINED = PaperText(
    "Retained messages, sent or held back by a learned policy",
    "A newcomer gets the last retained message at once. Where the next message is near, that "
    "copy is wasted; where it is far, holding it back leaves the newcomer blind. Can a policy "
    "learn when to send?",
    "A decision process has the age of the message, how long a newcomer has waited and whether a "
    "publish has just come as its state; its reward weighs timeliness against traffic by ω. "
    "Q-learning with the paper's constants learns a table. All rewards are then computed "
    "exactly, for plain MQTT, always waiting, the learned table, one general policy for all "
    "topics, what a node follows that has learned from newcomers, and the optimum by value "
    "iteration.",
    "The reward's formula, the shape of timeliness, Dmax and the exploration are not given or "
    "lost; “expected reward” is read as the discounted sum, and as the mean per step. As "
    "written, the paper's state leaves out whether a newcomer waits, never starts the "
    "wait anew, and never makes a message young again; ours does. The table shows what the "
    "conclusion owes to these choices.",
    "Nobody waits longer than Dmax; a topic that falls silent sends at once; no older message "
    "ever follows a newer one; a subscriber's own wish overrules the policy. One policy over "
    "continuous rates serves topics that were never trained on, and a broker falls back to plain "
    "MQTT where it has seen too little. It learns from real newcomers what waiting cost and saved: "
    "on topics in bursts, where the table loses to plain MQTT, it does not.",
    {
        ("C4.1", "discounted, θ = 0.95"): _yes(
            "Held-back copies save traffic, which weighs more as ω falls; most of the fall, "
            "sending each publish to everybody, is nobody's to save."
        ),
        ("C4.1", "mean per step"): _no(
            "Plain MQTT falls more, as the paper says. But the policy is learned for the "
            "discounted reward, where a cost that is only postponed counts less: at some ω it "
            "waits where that is slightly worse than plain MQTT in the undiscounted mean, and we "
            "ask for never."
        ),
        ("C4.2", "mean per step"): _no(
            "The policy is learned for the discounted reward, where a cost that is only postponed "
            "counts less. At the smallest λP it waits although hardly anything comes, and in the "
            "undiscounted mean that is slightly worse than plain MQTT. A broker does not hold back "
            "on such topics: less than one publish is expected within Dmax."
        ),
        ("C4.2", "discounted, θ = 0.95"): _yes(
            "At large λP every publish goes to everyone anyway. At very small λP, too, there is "
            "little to gain: waiting seldom pays when nothing comes."
        ),
    },
)  # fmt: skip

STORIES: Final[dict[int, PaperText]] = {0: _QR, 1: _RANKED, 2: _CAUSAL, 3: _OVERLAY, 4: _RETAINED}
