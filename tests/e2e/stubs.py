"""Stand-ins for the CUDA libraries that torch is linked with.

Torch's package for GPUs is the only one in the index; it wants a dozen libraries of several
gigabytes, and a process without a GPU never calls one. Each stand-in has the name of the library
and the symbols that torch wants from it, each a function that ends the process: symbols are bound
when first called, so a wrong guess about what is called shows at once.

    stubs.py FOLDER    the folder `torch/lib`
"""

import pathlib
import re
import subprocess
import sys
import tempfile

# Library, by the start of its file name: what its symbols look like.
OWNERS = {
    "libcublas.so": r"cublas(?!Lt)",
    "libcublasLt.so": r"cublasLt",
    "libcudnn.so": r"cudnn",
    "libcufft.so": r"cufft",
    "libcufile.so": r"cuFile",
    "libcurand.so": r"curand",
    "libcusolver.so": r"cusolver",
    "libcusparse.so": r"cusparse(?!Lt)",
    "libcusparseLt.so": r"cusparseLt",
    "libnccl.so": r"p?nccl",
    "libnvrtc.so": r"nvrtc",
    "libnvshmem_host.so": r"nvshmem|_Z\w*nvshmem",
}


def main(folder: pathlib.Path) -> None:
    torch = sorted([*folder.glob("lib*torch*.so"), *folder.glob("libc10*.so")])
    if not torch:
        sys.exit(f"no torch libraries in {folder}")
    wanted = set()
    symbols = set()
    for library in torch:
        wanted.update(re.findall(r"\(NEEDED\).*\[(.+?)\]", said("readelf", "-dW", library)))
        for line in said("nm", "-D", "--undefined-only", library).splitlines():
            symbols.add(line.split()[-1].partition("@")[0])
    for name in sorted(wanted):
        pattern = OWNERS.get(name.partition(".so")[0] + ".so")
        if pattern:
            own = sorted(symbol for symbol in symbols if re.match(pattern, symbol))
            compile_stub(folder / name, own)
            print(f"{name}: {len(own)} symbols", file=sys.stderr)


def compile_stub(library: pathlib.Path, symbols: list[str]) -> None:
    lines = ["void abort(void);", *(f"void {symbol}(void) {{ abort(); }}" for symbol in symbols)]
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "stub.c")
        source.write_text("\n".join(lines) + "\n")
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library.name}"]
            + ["-o", library, source],
            check=True,
        )


def said(*command) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


main(pathlib.Path(sys.argv[1]))
