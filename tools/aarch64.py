"""To build and test for aarch64 on x86-64: a root with Debian's Python and PyTorch's wheel, whose programs qemu runs.

  python -m tools.aarch64 root FOLDER             makes the root
  python -m tools.aarch64 run FOLDER COMMAND...   runs a command for which FOLDER comes before the machine's own /

Needs Debian with apt and pip, and its packages g++-aarch64-linux-gnu and qemu-user. `run` needs the right to register
qemu with the kernel, since programs start others. Compilers are the machine's own and run natively.

PyTorch's wheel for aarch64 is linked with CUDA's libraries, of gigabytes, which nothing here uses: stand-ins without
contents take their places.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON = "python3.11"  # Debian's
PREFIX = "aarch64-linux-gnu"
LIBRARIES = f"usr/lib/{PREFIX}"
PACKAGES = f"usr/local/lib/{PYTHON}/dist-packages"
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
# What PyTorch needs and `--no-deps` leaves out: its other dependencies are CUDA's.
DEPENDENCIES = ("filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec")
CUDA = re.compile(r"lib(cu|nccl|nvrtc|nvshmem)")
FUNCTIONS = re.compile(r"cu|nccl|nv")
BINFMT = Path("/proc/sys/fs/binfmt_misc")
# Programs of ELF's machine 183. F: the kernel opens qemu now.
HANDLER = (
    r":torch-mtia-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:"
    r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:{}:F"
)
CPU = "neoverse-n1"  # without SVE, which qemu is slow at
MIDR = "0x00000000413fd0c1"  # what that one says of itself
CPUINFO = """processor\t: {}
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x4
CPU part\t: 0xd0c
CPU revision\t: 1

"""


def main() -> int:
    if len(sys.argv) < 3 or sys.argv[1] not in ("root", "run"):
        print(__doc__)
        return 2
    folder = Path(sys.argv[2]).resolve()
    if sys.argv[1] == "run":
        return run(folder, sys.argv[3:])
    install_debian(folder)
    install_python_packages(folder)
    write_stand_ins(folder)
    describe_processors(folder)
    return 0


def install_debian(folder: Path) -> None:
    """Unpacks Python and what it depends on; nothing is configured."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("lists/partial", "archives/partial"):
            Path(scratch, name).mkdir(parents=True)
        Path(scratch, "status").touch()
        options = {
            "APT::Architecture": "arm64",
            "APT::Architectures": "arm64",
            "APT::Sandbox::User": "root",
            "Dir::State::status": f"{scratch}/status",
            "Dir::State::lists": f"{scratch}/lists",
            "Dir::Cache": scratch,
            "Dir::Cache::archives": f"{scratch}/archives",
        }
        apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
        subprocess.run([*apt, "update"], check=True)
        wanted = [PYTHON, f"lib{PYTHON}-dev", "python3-distutils", "libstdc++6", "libgomp1", "libgfortran5"]
        subprocess.run([*apt, "--no-install-recommends", "--download-only", "-y", "install", *wanted], check=True)
        folder.mkdir(parents=True, exist_ok=True)
        for package in sorted(Path(scratch, "archives").glob("*.deb")):
            subprocess.run(["dpkg", "-x", package, folder], check=True)


def install_python_packages(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary=:all:"]
    pip += [
        "--implementation=cp",
        f"--python-version={PYTHON.removeprefix('python')}",
        "--target",
        str(folder / PACKAGES),
    ]
    pip += [f"--platform={platform}" for platform in PLATFORMS]
    requirements = "".join((ROOT / "requirements" / f"{name}.txt").read_text() for name in ("build", "demo", "test"))
    versions = dict(re.findall(r"^([\w-]+)==(\S+)", requirements, re.MULTILINE))
    heavy = [f"{name}=={versions[name]}" for name in ("torch", "triton")]
    others = [f"{name}=={versions[name]}" for name in ("setuptools", "ninja", "pyyaml", "pytest", "pytest-xdist")]
    others += [f"{name}=={versions[name]}" for name in ("expecttest", "llvmlite")]
    subprocess.run([*pip, *others, "numpy", "scipy", *DEPENDENCIES], check=True)
    subprocess.run([*pip, "--no-deps", *heavy], check=True)


def write_stand_ins(folder: Path) -> None:
    """In the places of CUDA's libraries."""
    torch = folder / PACKAGES / "torch" / "lib"
    libraries = list(torch.glob("*.so*"))
    present = {path.name for place in (torch, folder / LIBRARIES, folder / "lib" / PREFIX) for path in place.iterdir()}
    missing = sorted(set().union(*map(needed, libraries)) - present)
    undefined = set().union(*map(undefined_symbols, libraries))
    for library in missing:
        if not CUDA.match(library):
            sys.exit(f"error: nothing has {library}, which PyTorch needs")
        names = {(name, version) for name, version, of in undefined if of == library}
        if library.startswith("libcudart."):  # which all of them load; nothing says whose those without a version are
            names |= {(name, library) for name, _, of in undefined if not of and FUNCTIONS.match(name)}
        make_library(folder / LIBRARIES / library, names)


def needed(library: Path) -> set[str]:
    listing = subprocess.check_output([f"{PREFIX}-readelf", "-d", library], text=True)
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", listing))


def undefined_symbols(library: Path) -> set[tuple[str, str, str]]:
    """(name, version, library that it is of, if it has a version)"""
    versions, of = {}, ""
    for line in subprocess.check_output([f"{PREFIX}-readelf", "-VW", library], text=True).splitlines():
        if found := re.search(r"File: (\S+)", line):
            of = found[1]
        elif of and (found := re.search(r"Name: (\S+)", line)):
            versions[found[1]] = of
    listing = subprocess.check_output([f"{PREFIX}-nm", "-D", "--undefined-only", library], text=True)
    names = (line.split()[-1].partition("@") for line in listing.splitlines())
    return {(name, version, versions.get(version, "")) for name, _, version in names}


def make_library(path: Path, names: set[tuple[str, str]]) -> None:
    """Of functions that return CUDA's number for "there is no device"."""
    with tempfile.TemporaryDirectory() as scratch:
        source, script = Path(scratch, "library.s"), Path(scratch, "script")
        source.write_text("".join(f".globl {name}\n{name}: mov x0, 100\nret\n" for name in sorted(dict(names))))
        versions: dict[str, list[str]] = {}
        for name, version in names:
            versions.setdefault(version, []).append(name)
        script.write_text("\n".join(f"{each} {{ global: {'; '.join(of)}; }};" for each, of in versions.items()))
        command = [f"{PREFIX}-gcc", "-shared", "-nostdlib", str(source), "-o", str(path), f"-Wl,-soname,{path.name}"]
        subprocess.run([*command, f"-Wl,--version-script={script}"] if versions else command, check=True)


def describe_processors(folder: Path) -> None:
    """Where the root has none, programs see the machine's own files, of x86-64."""
    processors = range(os.cpu_count() or 1)
    files = {f"sys/devices/system/cpu/cpu{n}/regs/identification/midr_el1": f"{MIDR}\n" for n in processors}
    files["proc/cpuinfo"] = "".join(CPUINFO.format(number) for number in processors)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def run(folder: Path, command: list[str]) -> int:
    register()
    environ = {
        **os.environ,
        "QEMU_LD_PREFIX": str(folder),
        "QEMU_CPU": CPU,
        "PATH": f"{folder}/usr/bin:{folder / PACKAGES}/bin:{os.environ['PATH']}",
        "CC": f"{PREFIX}-gcc",
        "CXX": f"{PREFIX}-g++",
        "NM": f"{PREFIX}-nm",
        "CPATH": f"{folder}/usr/include:{folder}/usr/include/{PYTHON}",
        "PYTHONNOUSERSITE": "1",
    }
    return subprocess.run(command, env=environ, check=False).returncode


def register() -> None:
    if (BINFMT / "torch-mtia-aarch64").exists():
        return
    if not (BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "none", BINFMT], check=True)
    if not (BINFMT / "torch-mtia-aarch64").exists():
        qemu = shutil.which("qemu-aarch64")
        if qemu is None:
            sys.exit("error: there is no qemu-aarch64; install qemu-user")
        (BINFMT / "register").write_text(HANDLER.format(qemu))


if __name__ == "__main__":
    sys.exit(main())
