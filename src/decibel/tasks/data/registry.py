"""The datasets as data: their files, checksums, origins and licences."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Kind = Literal["idx", "cifar", "npz", "libsvm", "wav", "text"]

DIGITS = tuple(str(digit) for digit in range(10))
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class File:
    """One file of a dataset.

    Attributes:
        path: below `$DECIBEL_DATA` and below the cache.
        sha256: of the content: decompressed if the file is .gz or .xz, and without trailing blanks in LIBSVM text, in
            which copies of these files differ.
        rows: the number of samples, where the format allows to count them.
        url: where it is downloaded from; None if it has to be placed by hand.
        published: the sha256 of the file at `url`.
    """

    path: str  # below $DECIBEL_DATA and below the cache
    sha256: str
    rows: int = 0  # samples in it, where the format lets us count
    url: str | None = None  # None: placed by hand
    published: str | None = None


@dataclass(frozen=True)
class Source:
    """Where the files of a dataset come from and what they contain.

    Attributes:
        name: the name of the dataset.
        title: what it is.
        kind: the format of its files.
        files: training files first.
        licence: of the data.
        origin: the publisher's page.
        class_names: names of the classes.
        features: the number of features of tabular data.
    """

    name: str
    title: str
    kind: Kind
    files: tuple[File, ...]  # training files first
    licence: str
    origin: str
    class_names: tuple[str, ...] = ()
    features: int = 0

    @property
    def downloadable(self) -> bool:
        """Whether every file has a URL."""
        return all(file.url for file in self.files)


def _idx(name: str, base: str, hashes: dict[str, tuple[str, str]]) -> tuple[File, ...]:
    rows = (60_000, 60_000, 10_000, 10_000)
    return tuple(
        File(f"{name}/{file}", content, count, base + file, published)
        for count, (file, (content, published)) in zip(rows, hashes.items(), strict=True)
    )


_FASHION = _idx(
    "fashion-mnist",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    {
        "train-images-idx3-ubyte.gz": (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        "train-labels-idx1-ubyte.gz": (
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        "t10k-images-idx3-ubyte.gz": (
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        "t10k-labels-idx1-ubyte.gz": (
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    },
)

_MNIST = _idx(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    {
        "train-images-idx3-ubyte.gz": (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        "train-labels-idx1-ubyte.gz": (
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        "t10k-images-idx3-ubyte.gz": (
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        "t10k-labels-idx1-ubyte.gz": (
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    },
)

_CIFAR10 = File(
    "cifar10/cifar-10-python.tar.gz",
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    10_000,  # in each of its six batches
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
)
_CIFAR10_SUBSET = File(
    "cifar10-subset/cifar10-subset.npz",
    "7e404f7badc39618c0bcaf52f9a57d56ef5bf42ad0a3bc75fae43fedb4d58560",
    12_000,
)
_FSDD = File("fsdd/recordings.zip", "823de082283dcc3bc6008e89f020aa9224736cbd8ae0345e31e6915869778aec", 3_000)


def _libsvm(name: str, sha256: str, rows: int, published: str | None = None) -> File:
    url = f"https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/{name}"
    return File(f"libsvm/{name}", sha256, rows, url, published)


# No public record confirms the two australian originals byte for byte; their content is checked instead.
_AUSTRALIAN = _libsvm("australian", "c43bdd0b66d83fb7a939baf0b7ad6d54311df79a7f182f513f6a72413078be75", 690)
_AUSTRALIAN_SCALE = _libsvm("australian_scale", "afdad9688b24bbc37b3f442434d5bf9fd06b18561198954eb55e9fa5eb2ae6e7", 690)
_A9A = _libsvm(
    "a9a",
    "76b604b2c3f738783537bd3b32893eae66af54b8a41aee534fac1ecea45c1535",
    32_561,
    "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
)
_A9A_TEST = _libsvm(
    "a9a.t",
    "0c3135eb9b9d83a4fa007d6e1a3b719f029db78884dafd5a46a4d7eeb4c2b018",
    16_281,
    "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
)
_TABULAR = "UCI Machine Learning Repository, CC BY 4.0"
_LIBSVM_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"

_SOURCES = [
    Source("fashion-mnist", "Fashion-MNIST", "idx", _FASHION, "MIT",
           "https://github.com/zalandoresearch/fashion-mnist", CLOTHES),
    Source("mnist", "MNIST handwritten digits", "idx", _MNIST, "CC BY-SA 3.0",
           "http://yann.lecun.com/exdb/mnist", DIGITS),
    Source("cifar10", "CIFAR-10", "cifar", (_CIFAR10,), "not stated by its authors; research use",
           "https://www.cs.toronto.edu/~kriz/cifar.html", OBJECTS),
    Source("cifar10-subset", "CIFAR-10, a class-balanced sample", "npz", (_CIFAR10_SUBSET,),
           "not stated by its authors; research use", "https://www.cs.toronto.edu/~kriz/cifar.html", OBJECTS),
    Source("australian", "Australian credit approval", "libsvm", (_AUSTRALIAN,), _TABULAR, _LIBSVM_PAGE,
           ("-1", "+1"), 14),
    Source("australian_scale", "Australian credit approval, scaled", "libsvm", (_AUSTRALIAN_SCALE,), _TABULAR,
           _LIBSVM_PAGE, ("-1", "+1"), 14),
    Source("a9a", "Adult income, binary features", "libsvm", (_A9A, _A9A_TEST), _TABULAR, _LIBSVM_PAGE,
           ("-1", "+1"), 123),
    Source("fsdd", "Free Spoken Digit recordings", "wav", (_FSDD,), "CC BY-SA 4.0",
           "https://github.com/Jakobovski/free-spoken-digit-dataset", DIGITS),
]  # fmt: skip

# Domain: sha256 of the text, licence, what it is. All but Shakespeare were gathered for this project.
_TEXTS = {
    "wiki": (
        "d31290f429b6019a16d619d6f896396fb917b349b1a99ba8e370c70f7ea3dbc7",
        "CC BY-SA",
        "Wikipedia articles",
    ),
    "books": (
        "b17923f43b05d7025905cd01c18dc1a4cd02f6ed912ee9fc18d62250c0fe3219",
        "public domain",
        "books",
    ),
    "code_python": (
        "435d45b2c830e6205dfd020a15ccfe7e0f67e5b0025ca512c5964c0ac1078ac4",
        "PSF",
        "the Python standard library",
    ),
    "docs_linux_kernel": (
        "7aacce3a4bcd4c5040dff2d24d0a0bacad1475f97e1acacec0a1faa190140583",
        "GPL-2.0",
        "Linux kernel documentation",
    ),
    "reviews_movies": (
        "77a7d3c3f8df80119150c994911fa296a04f5da1848310345c97f9ee1e1f43cb",
        "CC BY 4.0",
        "film reviews",
    ),
    "science_math_latex": (
        "5bd3cfa30ed318d33fb5eb74cf9498a7ceb031bde5696e20f79039b7dd11e9a0",
        "GFDL 1.2",
        "mathematics in LaTeX",
    ),
    "speeches_state_union": (
        "c3a7c3bf900ef888193bfeb0eb9c4b8fa0a1d60105f9c58ab9a71dfd9c2f50b5",
        "public domain",
        "State of the Union addresses",
    ),
    "tinyshakespeare": (
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        "public domain",
        "Shakespeare's plays, a sample",
    ),
}
_SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"


def _text(domain: str) -> Source:
    sha256, licence, title = _TEXTS[domain]
    url = _SHAKESPEARE if domain == "tinyshakespeare" else None
    file = File(f"text/{domain}.txt.xz", sha256, url=url, published=sha256 if url else None)
    return Source(f"text/{domain}", title, "text", (file,), licence, url or "gathered for this project")


DOMAINS = tuple(_TEXTS)
SOURCES = MappingProxyType({source.name: source for source in [*_SOURCES, *map(_text, DOMAINS)]})


def source(name: str) -> Source:
    """The registry's entry called `name`."""
    if name not in SOURCES:
        raise ValueError(f"name={name!r} is not a dataset{nearest(name, [*SOURCES, 'digits'])}")
    return SOURCES[name]


def nearest(name: str, known: list[str]) -> str:
    """The end of the error message for an unknown `name`: the nearest known one, or all of them."""
    close = difflib.get_close_matches(name, known, n=1)
    return f": did you mean {close[0]!r}?" if close else f": choose one of {', '.join(known)}."
