"""Starts a container's program: makes namespaces and root file system, changes user, execs.

Runs as a script of its own with the standard library only (`python -I -S launcher.py SPEC_FD STATUS_FD
NODE_PID`), so that it starts in milliseconds. SPEC_FD holds a JSON document, see `LaunchSpec` in
`process.py`. On STATUS_FD it writes `pid N` as soon as the program's process exists; end of file
after that means that the program has been started, `error TEXT` that it could not be.

The program is PID 1 of a PID namespace of its own: when it ends, everything it started ends. It dies with the
launcher, and the launcher dies with the node, even if the node is killed.
"""

# pathlib and contextlib would double the time that every container and every exec probe takes to start.
# ruff: noqa: PTH101, PTH102, PTH103, PTH106, PTH108, PTH110, PTH112, PTH116, PTH120, PTH123, PTH211
# ruff: noqa: SIM105, S103, S108, S606

import ctypes
import json
import os
import signal
import stat
import sys
from typing import Any, NoReturn

Spec = dict[str, Any]

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 23, 24, 38
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
LAST_CAPABILITY = 63
OLD_ROOT = "/.node-root"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
START_ERROR = 128

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    checked(
        libc.mount(
            source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), options.encode()
        ),
        f"mount {source} on {target}",
    )


def die_with_parent(parent: int) -> None:
    # As `warmfleet_runtime.die_with_parent`, which cannot be imported here: `-S` leaves site-packages out.
    checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != parent:  # it died before the call above
        os._exit(START_ERROR)


def enter(spec: Spec) -> None:
    """Joins the namespaces of a running container (exec)."""
    for name, descriptor in sorted(spec["join"].items(), key=lambda item: item[0] == "mnt"):
        checked(libc.setns(descriptor, 0), f"setns {name}")


def make_root(spec: Spec) -> None:
    """An overlay of this machine's root as the container's root, with its volumes; `/` afterwards."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    scratch = spec["scratch"]
    mount("tmpfs", scratch, "tmpfs", options="mode=755")
    for name in ("upper", "work", "root"):
        os.mkdir(f"{scratch}/{name}", 0o755)
    root = f"{scratch}/root"
    mount("overlay", root, "overlay", options=f"lowerdir=/,upperdir={scratch}/upper,workdir={scratch}/work")
    os.mkdir(root + OLD_ROOT, 0o700)
    checked(libc.syscall(SYS_PIVOT_ROOT, root.encode(), (root + OLD_ROOT).encode()), "pivot_root")
    os.chdir("/")
    os.umask(0)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY)
    make_devices(spec["devices"])
    for path in spec["paths"]:
        show_path(path)
    hidden = hidden_by_volumes(spec)
    for path, content in spec["files"].items():
        # A link of the host, such as resolv.conf, must not be followed.
        if os.path.lexists(path):
            os.unlink(path)
        with open(path, "w") as file:
            file.write(content)
        os.chmod(path, 0o644)
    for entry in sorted(spec["mounts"], key=lambda entry: entry["target"].count("/")):
        bind(OLD_ROOT + entry["source"], entry["target"], read_only=entry["read_only"])
    for path, descriptor in hidden.items():
        # Not over an entry of the volume itself; an empty folder is the mount point of an earlier container.
        if not os.path.lexists(path) or (os.path.isdir(path) and not any(os.scandir(path))):
            bind(f"/proc/self/fd/{descriptor}", path, read_only=True)
        os.close(descriptor)
    os.makedirs(spec["workdir"], exist_ok=True)
    checked(libc.umount2(OLD_ROOT.encode(), MNT_DETACH), "umount")
    os.rmdir(OLD_ROOT)
    if spec["read_only_root"]:
        mount("none", "/", flags=MS_REMOUNT | MS_RDONLY)
    os.umask(0o022)


def make_devices(more: list[str]) -> None:
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755,size=64k")
    for name in (*DEVICES, *more):
        source = f"{OLD_ROOT}/dev/{name}"
        if os.path.exists(source):
            open(f"/dev/{name}", "w").close()
            mount(source, f"/dev/{name}", flags=MS_BIND)
    os.mkdir("/dev/shm")
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m")
    os.mkdir("/dev/pts")
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    for name, target in (
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ):
        os.symlink(target, f"/dev/{name}")


def show_path(path: str) -> None:
    """Makes a path of the image reachable for any user: parents get x permission, other disks are bound."""
    source = OLD_ROOT + path
    if not os.path.exists(source):
        return
    if not os.path.exists(path):
        bind(source, path, read_only=True)
    parent = os.path.dirname(path)
    while parent not in ("", "/"):
        mode = stat.S_IMODE(os.stat(parent).st_mode)
        if mode & 0o111 != 0o111:
            os.chmod(parent, mode | 0o111)
        parent = os.path.dirname(parent)


def hidden_by_volumes(spec: Spec) -> dict[str, int]:
    """Open descriptors of folders of the image that volumes will cover, such as /tmp/clone under a /tmp."""
    found: dict[str, int] = {}
    for entry in spec["mounts"]:
        above = entry["target"].rstrip("/") + "/"
        for path in spec["paths"]:
            inner = path.removeprefix(above).split("/")[0]
            if path.startswith(above) and above + inner not in found and os.path.isdir(above + inner):
                found[above + inner] = os.open(above + inner, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return found


def bind(source: str, target: str, *, read_only: bool) -> None:
    if os.path.isdir(source):
        os.makedirs(target, mode=0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        if not os.path.lexists(target):
            open(target, "w").close()
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        mount("none", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def take_identity(spec: Spec) -> None:
    """Capabilities, groups, user. The parent-death signal comes last: a change of user clears it."""
    allowed = set(spec["capabilities"])
    for capability in range(LAST_CAPABILITY + 1):
        if capability not in allowed and libc.prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 1:
            checked(libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0), "drop capability")
    os.setgroups(spec["groups"])
    os.setgid(spec["gid"])
    os.setuid(spec["uid"])
    if spec["no_new_privileges"]:
        checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def become(spec: Spec, status_fd: int, parent: int) -> NoReturn:
    """In the child: turns into the container's program. Never returns."""
    try:
        # PID 1 cannot see its parent: getppid() is 0 when that lives outside, and stays so.
        checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        if not spec["join"]:
            os.setsid()
            name = spec["hostname"].encode()
            checked(libc.sethostname(name, len(name)), "sethostname")
            make_root(spec)
        take_identity(spec)
        checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        # The launcher holds the other end of this pipe: if it is gone already, no signal will come.
        if os.read(parent, 1) != b"g":
            os._exit(START_ERROR)
        os.chdir(spec["workdir"])
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except OSError as error:
        os.write(status_fd, f"error {spec['argv'][0]}: {error}\n".encode())
    except Exception as error:  # noqa: BLE001 - the status pipe is this process's only output
        os.write(status_fd, f"error {error!r}\n".encode())
    os._exit(START_ERROR)


def main() -> NoReturn:
    spec_fd, status_fd, node = (int(argument) for argument in sys.argv[1:])
    die_with_parent(node)
    with os.fdopen(spec_fd) as file:
        spec = json.load(file)
    os.set_inheritable(status_fd, False)
    try:
        if spec["join"]:
            enter(spec)
        else:
            checked(libc.setns(spec["network"], 0), "setns")
            flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS
            checked(libc.unshare(flags), "unshare")
    except OSError as error:
        os.write(status_fd, f"error {error}\n".encode())
        os._exit(START_ERROR)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        become(spec, status_fd, reading)
    os.close(reading)
    # The node signals the child itself; the launcher only waits.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.write(status_fd, f"pid {child}\n".encode())
    os.close(status_fd)
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    try:
        os.write(writing, b"g")
    except BrokenPipeError:
        pass
    _, waited = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(waited)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
