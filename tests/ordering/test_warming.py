"""After `load()` no message waits for a compiler."""

import subprocess
import sys

SCRIPT = """
import sys

from nearcast.kernels import load
from nearcast.ordering import CausalMessage, DeltaCausal


def compiled():
    return {
        f"{name}.{kernel}": len(one.signatures)
        for name, module in list(sys.modules.items())
        if name.startswith("nearcast.ordering")
        for kernel, one in vars(module).items()
        if hasattr(one, "signatures")
    }


load(["ordering"])
before = compiled()
members = {name: DeltaCausal(name, lifetime=1.0, skew=0.1) for name in "abcdef"}
late = []
for step in range(200):
    now = 0.05 * step
    sender = "abcdef"[step % 6]
    sent = members[sender].send(set("abcdef") - {sender}, b"x" * step, now=now)
    for number, (name, message) in enumerate(sent.items()):
        if (step + number) % 5 == 0:
            late.append((name, message))
        elif number % 3:
            members[name].receive(CausalMessage.decode(message.encode()), now=now)
        else:
            members[name].receive(message.encode(), now=now)
    if step % 7 == 0:
        for name, message in late:
            members[name].receive(message, now=now)
        late.clear()
    for one in members.values():
        one.advance(now=now)
        one.wake_at()
    if step == 100:
        members["b"].forget("f")
        members["b"].observe_offset("c", 0.01)
assert compiled() == before, {k: v for k, v in compiled().items() if v != before.get(k)}
"""


def test_whatever_a_member_does_after_warming_up_is_compiled_already():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
