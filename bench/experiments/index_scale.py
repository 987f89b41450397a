"""Time and peak memory of `vitlab data index` and `verify` against the number of samples.

Each row is a process of its own with one job; the memory is its largest resident size. The time is that of the
processor for the call, in user and system mode and without imports, so that other programs on the machine do not count.
The folder has 1,000 files in each class, and the shards have 10,000 samples each. Files and shards are hard links to a
few of them: little on disk, and many names. `renamed` is a verification after one file of the folder got another name,
so that all ids are matched.
    python -m bench.experiments.index_scale 10000 100000 1000000 > evidence/index_scale.txt
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

PER_CLASS, PER_SHARD, CONTENTS = 1_000, 10_000, 1_000
CHILD = """
import sys, time
import vitlab
vitlab.index_data, vitlab.verify_data
what, source, index, out = sys.argv[1:]
start, samples = time.process_time(), 0
if what == "index":
    samples = vitlab.index_data(source, index, quiet=True).samples
elif what == "verify":
    found = vitlab.verify_data(index, out=out, quiet=True)
    assert found.is_sound
    samples = found.checked
elif what == "renamed":
    found = vitlab.verify_data(index, out=out, quiet=True)
    assert found.counts == {"missing": 1, "added": 1}
    samples = found.checked
print(samples, time.process_time() - start)
"""


def write_folder(folder: Path, samples: int) -> str:
    """Class folders of hard links."""
    originals = folder.parent / "originals"
    originals.mkdir()
    for number in range(CONTENTS):
        (originals / f"{number}").write_bytes(f"image {number} ".encode() * 40)
    for place in range(0, samples, PER_CLASS):
        own = folder / f"class{place // PER_CLASS:05d}"
        own.mkdir(parents=True)
        for number in range(place, min(place + PER_CLASS, samples)):
            os.link(originals / f"{number % CONTENTS}", f"{own}/{number:09d}.jpg")
    return f"folder:{folder}"


def write_shards(folder: Path, samples: int) -> str:
    """Shards of hard links."""
    folder.mkdir()
    with tarfile.open(folder / "s00000.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(PER_SHARD):
            for suffix, data in (("jpg", f"image {number} ".encode() * 40), ("cls", b"%d" % (number % 1000))):
                member = tarfile.TarInfo(f"{number:09d}.{suffix}")
                member.size = len(data)
                tar.addfile(member, BytesIO(data))
    for shard in range(1, samples // PER_SHARD):
        os.link(folder / "s00000.tar", folder / f"s{shard:05d}.tar")
    return f"shards:{folder}"


def measured(*arguments: str) -> tuple[int, float, float]:
    """Samples, seconds of the processor for the call, and megabytes of a child."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    said = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, said
    samples, seconds = said.split()
    return int(samples), float(seconds), usage.ru_maxrss / 1024


def main(numbers: list[int]) -> None:
    """Print a row for each measurement."""
    _, _, memory = measured("import", "", "", "")
    print(f"import only{'':29}  {'':9}  {memory:6.0f} MB peak", flush=True)
    for kind, write in (("shards", write_shards), ("folder", write_folder)):
        for samples in numbers:
            with tempfile.TemporaryDirectory() as scratch:
                spec, index = write(Path(scratch, "data"), samples), str(Path(scratch, "x.index"))
                for what in ("index", "verify", "renamed") if kind == "folder" else ("index", "verify"):
                    if what == "renamed":
                        first = Path(scratch, "data", "class00000", f"{0:09d}.jpg")
                        first.rename(first.with_name("renamed.jpg"))
                    found, seconds, memory = measured(what, spec, index, str(Path(scratch, "out")))
                    assert found == samples, found
                    each = f"{1e6 * seconds / samples:6.1f} us per sample"
                    row = f"{kind}  {what:7} {samples:9,} samples"
                    size = Path(index).stat().st_size / samples
                    print(f"{row:40}  {seconds:7.1f} s  {memory:6.0f} MB peak  {each}  {size:.0f} B/entry", flush=True)


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:]])
