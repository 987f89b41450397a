"""The 16 image sets behind the 19 tasks: what reads them, what to download, and under which terms."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vitlab.data.vtab.listing import Listing
from vitlab.data.vtab.places import Place
from vitlab.data.vtab.readers import clevr, dmlab, dsprites, kitti, natural, smallnorb, specialized
from vitlab.errors import did_you_mean
from vitlab.paper import vtab
from vitlab.paper.vtab import VtabTask

Reader = Callable[[Place, str, VtabTask], Listing]  # place, TFDS split, task
EXACT: Final = ""
# Differs from the paper: Caltech101, EuroSAT and Resisc45 have other training images, because the authors' order of
# these sets cannot be recovered. Split lists that others have published can replace ours.
CLOSE_KEYS: Final = "the authors' order depends on a path on their machine; ours is that of TFDS since 2022"
CLOSE_LISTING: Final = "the authors' training images depend on their file system; ours are drawn in alphabetical order"


@dataclass(frozen=True)
class ImageSet:
    """An image set; `folders` are the names that a folder of its own may have below the folder of all downloads."""

    key: str
    reader: Reader
    folders: tuple[str, ...]
    files: str  # to download
    source: str  # where to get them
    licence: str
    order: str = EXACT  # how our order differs from the authors'; empty: it is theirs
    needs_own: bool = False

    def place(self, root: Path) -> Place:
        """The folders in which the files may be."""
        return Place(root, self.folders, self.needs_own)


RESEARCH: Final = "research only"
# fmt: off
IMAGE_SETS: Final[dict[str, ImageSet]] = {made.key: made for made in (
    ImageSet("caltech101", natural.caltech101, ("caltech101", "caltech-101"), "caltech-101.zip",
             "data.caltech.edu/records/mzrjq-6wc02", "CC BY 4.0", CLOSE_LISTING),
    ImageSet("cifar100", natural.cifar100, ("cifar100", "cifar"), "cifar-100-binary.tar.gz or cifar-100-python.tar.gz",
             "www.cs.toronto.edu/~kriz/cifar.html", "not stated"),
    ImageSet("dtd", natural.dtd, ("dtd",), "dtd-r1.0.1.tar.gz", "www.robots.ox.ac.uk/~vgg/data/dtd", RESEARCH),
    ImageSet("oxford_flowers102", natural.flowers102, ("oxford_flowers102", "flowers102", "flowers"),
             "102flowers.tgz, imagelabels.mat, setid.mat", "www.robots.ox.ac.uk/~vgg/data/flowers/102", "not stated"),
    ImageSet("oxford_iiit_pet", natural.pets, ("oxford_iiit_pet", "pets", "oxford_pet"),
             "images.tar.gz, annotations.tar.gz", "www.robots.ox.ac.uk/~vgg/data/pets", "CC BY-SA 4.0", needs_own=True),
    ImageSet("sun397", natural.sun397, ("sun397",),
             "SUN397.tar.gz, and sun397_tfds_tr.txt, _va.txt, _te.txt of the package tensorflow-datasets",
             "vision.princeton.edu/projects/2010/SUN", RESEARCH),
    ImageSet("svhn", natural.svhn, ("svhn",), "train_32x32.mat, test_32x32.mat",
             "ufldl.stanford.edu/housenumbers", "non-commercial use"),
    ImageSet("patch_camelyon", specialized.patch_camelyon, ("patch_camelyon", "pcam"),
             "camelyonpatch_level_2_split_{train,valid,test}_{x,y}.h5.gz", "github.com/basveeling/pcam", "CC0"),
    ImageSet("eurosat", specialized.eurosat, ("eurosat",), "EuroSAT.zip", "github.com/phelber/EuroSAT", "MIT",
             CLOSE_KEYS),
    ImageSet("resisc45", specialized.resisc45, ("resisc45",), "NWPU-RESISC45.rar, unpacked",
             "the authors' page of NWPU-RESISC45", RESEARCH, CLOSE_KEYS),
    ImageSet("diabetic_retinopathy", specialized.diabetic_retinopathy, ("diabetic_retinopathy", "retinopathy"),
             "train/, test/ (unpacked), trainLabels.csv, retinopathy_solution.csv",
             "www.kaggle.com/c/diabetic-retinopathy-detection", "Kaggle's rules of the competition", needs_own=True),
    ImageSet("clevr", clevr.clevr, ("clevr",), "CLEVR_v1.0.zip", "cs.stanford.edu/people/jcjohns/clevr",
             "CC BY 4.0"),
    ImageSet("dmlab", dmlab.dmlab, ("dmlab",), "dmlab.tar.gz",
             "storage.googleapis.com/akolesnikov-dmlab-tfrecords", "Apache-2.0"),
    ImageSet("dsprites", dsprites.dsprites, ("dsprites",),
             "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz or .hdf5", "github.com/google-deepmind/dsprites-dataset",
             "Apache-2.0"),
    ImageSet("kitti", kitti.kitti, ("kitti",),
             "data_object_image_2.zip, data_object_label_2.zip, devkit_object.zip",
             "www.cvlibs.net/datasets/kitti", "CC BY-NC-SA 3.0"),
    ImageSet("smallnorb", smallnorb.smallnorb, ("smallnorb",),
             "smallnorb-5x46789x9x18x6x2x96x96-training-{dat,info}.mat.gz and -5x01235x...-testing-{dat,info}.mat.gz",
             "cs.nyu.edu/~ylclab/data/norb-v1.0-small", RESEARCH),
)}
# fmt: on


def image_set(task: VtabTask) -> ImageSet:
    """Return the image set of a task; two tasks may share one."""
    return IMAGE_SETS[task.tfds.partition("/")[0].partition(":")[0].removesuffix("_cropped").removesuffix("_detection")]


def vtab_task(name: str) -> VtabTask:
    """Return a task by its key or by its name in table 9, in any case: `dsprites_location`, `dSpr-Loc`, `dspr-loc`."""
    known = {written.lower(): task for task in vtab.TASKS for written in (task.key, task.name)}
    if name.lower() not in known:
        near = difflib.get_close_matches(name.lower(), known, n=3)
        listed = ", ".join(task.key for task in vtab.TASKS)
        raise ValueError(f"VTAB has no task {name!r:.60}; {did_you_mean(near)}its tasks are {listed}")
    return known[name.lower()]
