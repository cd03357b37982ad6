"""Networks of our own on one machine: namespaces as hosts, with a rate and a delay between them.

Not every kernel has netem, so most are a switch in user space (delay_switch.c). Faster ones without
delay are a bridge whose ports the kernel's token bucket (tbf) shapes: after a pause it lets a burst
pass free, and what it owes when its timer is late is lost, both of which count at lower rates.
Needs root.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "osfwb"
_CLONE_NEWNET, _PR_SET_PDEATHSIG = 0x40000000, 1  # linux/sched.h, linux/prctl.h
_SWITCHED = 3000  # Mbit/s, as much as it forwards with a core to spare
_SWITCH_MTU = 9000  # bytes; jumbo frames, as each packet costs the switch two system calls
_MTU = 1500
_BURST_S, _LEAST_BURST = 100e-6, 2 * (_MTU + 14)  # of tbf, may pass at once after a pause


@dataclass(frozen=True)
class Network:
    """What is between two hosts: mbit (10**6 bit/s each way), delay_us (us one way)."""

    mbit: int
    delay_us: int = 0

    @property
    def name(self) -> str:
        """How it is called in tables: 200 Mbit/s, 1 ms."""
        rate = f"{self.mbit / 1000:g} Gbit/s" if self.mbit >= 1000 else f"{self.mbit} Mbit/s"
        return f"{rate}, {self.delay_us / 1000:g} ms" if self.delay_us else rate

    @property
    def made_by(self) -> str:
        """What shapes it: the switch, or tbf."""
        return "switch" if self.delay_us or self.mbit <= _SWITCHED else "tbf"


@dataclass(frozen=True)
class Host:
    """A namespace, with an address on its only network interface."""

    namespace: str
    address: str
    interface: str = "eth0"

    def enter(self) -> None:
        """Move this process into the namespace."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/var/run/netns/{self.namespace}", encoding="utf-8") as file:
            if libc.setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns {self.namespace}")


def end_with_parent() -> None:
    """Let this process be killed when the one that started it ends, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def in_real_time(pid: int = 0, priority: int = 1) -> None:
    """Let a process, by default this one, run as soon as it has something to do.

    Else the scheduler lets whatever runs finish its slice, 4 ms, before the receiver of a message
    gets a core; hosts of a cluster have a core free for it.
    """
    os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(priority))


def missing() -> str:
    """Return why networks cannot be made here, "" where they can."""
    if os.name != "posix" or os.geteuid():
        return "network namespaces need root: run it as root, or with sudo"
    for tool in ("ip", "tc", "cc"):
        if not shutil.which(tool):
            return f"no {tool} here (iproute2 has ip and tc; cc compiles the switch)"
    if not os.path.exists("/dev/net/tun"):
        return "no /dev/net/tun here, through which the switch gives hosts their interfaces"
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        in_real_time()
        os.sched_setscheduler(0, *before)
        with hosts(Network(10_000), 2), hosts(Network(1000, 100), 2):
            return ""
    except (OSError, subprocess.CalledProcessError, RuntimeError) as error:
        why = getattr(error, "stderr", "") or error
        return f"namespaces cannot be made or shaped here: {why}"


@contextlib.contextmanager
def hosts(network: Network, n: int) -> Iterator[list[Host]]:
    """Yield n hosts on a new network; everything is removed at the end, also after an error.

    What a killed process left behind is removed too.
    """
    _remove_orphans()
    prefix = f"{_PREFIX}-{os.getpid()}-{network.mbit}-{network.delay_us}"
    made = [Host(f"{prefix}-{i}", f"10.231.7.{i + 1}") for i in range(n)]
    with contextlib.ExitStack() as stack:
        for host in made:
            _namespace(stack, host.namespace)
        if network.made_by != "tbf":
            stack.enter_context(_switch(network, made))
        else:
            _namespace(stack, f"{prefix}-bridge")
            _bridge(network, made, f"{prefix}-bridge")
        for host in made:
            _configure(host)
        yield made


def _namespace(stack: contextlib.ExitStack, name: str) -> None:
    with _uninterrupted():  # between the making and the promise to remove
        _run(f"ip netns add {name}")
        stack.callback(_remove, name)


def _remove(name: str) -> None:
    with _uninterrupted():
        _run(f"ip netns delete {name}")


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let SIGTERM and SIGINT wait; blocking them would not, as other threads take them."""
    late: list[int] = []
    wait = dict.fromkeys((signal.SIGTERM, signal.SIGINT), lambda number, _: late.append(number))
    before = {number: signal.signal(number, handler) for number, handler in wait.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in late:
            signal.raise_signal(number)


def _remove_orphans() -> None:
    for line in _run("ip netns list").splitlines():
        name = line.split()[0]
        if name.startswith(_PREFIX + "-") and not Path(f"/proc/{name.split('-')[1]}").exists():
            _remove(name)


def _configure(host: Host) -> None:
    _run(f"ip -n {host.namespace} link set lo up")
    _run(f"ip -n {host.namespace} address add {host.address}/24 dev {host.interface}")
    _run(f"ip -n {host.namespace} link set {host.interface} up")
    # Backward pauses a connection in every iteration; hosts of a cluster keep its window, too.
    setting = "/proc/sys/net/ipv4/tcp_slow_start_after_idle"
    _run(f"ip netns exec {host.namespace} sh -c", f"echo 0 > {setting}")


def _bridge(network: Network, made: list[Host], bridge: str) -> None:
    _run(f"ip -n {bridge} link add br0 type bridge")
    _run(f"ip -n {bridge} link set br0 mtu {_MTU} up")
    burst = max(_LEAST_BURST, int(network.mbit * 1e6 / 8 * _BURST_S))  # bytes
    shaped = f"root tbf rate {network.mbit}mbit burst {burst} limit 16mb"
    for i, host in enumerate(made):
        inner = f"eth0 netns {host.namespace}"
        _run(f"ip link add {inner} mtu {_MTU} type veth peer name p{i} netns {bridge}")
        _run(f"ip -n {bridge} link set p{i} mtu {_MTU} master br0 up")
        _run(f"tc -n {host.namespace} qdisc replace dev eth0 {shaped}")
        _run(f"tc -n {bridge} qdisc replace dev p{i} {shaped}")


@contextlib.contextmanager
def _switch(network: Network, made: list[Host]) -> Iterator[None]:
    """Compile the switch and run it in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/delay_switch"
        _run(f"cc -O2 -o {program} {Path(__file__).with_name('delay_switch.c')}")
        options = [network.mbit, network.delay_us, _SWITCH_MTU, *(host.namespace for host in made)]
        switch = subprocess.Popen([program, *map(str, options)], stdout=subprocess.PIPE)
        try:
            in_real_time(switch.pid, priority=2)
            if switch.stdout.readline() != b"ready\n":
                raise RuntimeError(f"the switch ended with code {switch.wait()}")
            yield
        finally:
            switch.terminate()
            switch.wait()
            switch.stdout.close()


def _run(command: str, *more: str) -> str:
    # In its own session, so that Ctrl-C does not end the removal of a namespace.
    done = subprocess.run(
        [*command.split(), *more],
        check=True,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    return done.stdout
