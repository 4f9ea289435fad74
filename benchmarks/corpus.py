"""A store as large as search is meant for: conversations in words as unequal as those of a
language.

What must stay true: the same store in every run, byte for byte; its files have the layout the store
gives them, as a sample makes sure; words follow Zipf's law, so that what a search meets is what it
meets in a language: few words in most of the messages, most words in few. Texts are prose with a
median of 300 characters and a long tail, one in twenty with code, one in thirty in Chinese or
Japanese.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

import orjson

from benchmarks.report import Bench, Step
from capsule import Store
from capsule.format.documents.creation import new_capsule
from capsule.format.json import codec

__all__ = ["BARE", "PHRASE", "Corpus", "ensure", "make", "rows"]

#: The file with the same texts in bare FTS5, beside the store.
BARE = "bare.db"
_MESSAGES = 100
_BEGIN = datetime(2023, 1, 1, tzinfo=UTC)
_DAYS = 1000
_COMMON = (
    "the be to of and a in that have it for not on with as you do at this but by from they we say "
    "or will one would "
    "there their what so up out if about who get which go me when make can like time no just know "
    "take into your some "
    "could them see other than then now look only come over think also back after use two how our "
    "work first well way "
    "even new want because any these give most file message test error value function user list "
    "index store search"
)
_STARTS = (
    "b c d f g h l m n p r s t v w b c d f g h l m n p r s t br cl cr dr fl gr pl pr qu sh "
    "sp st str th tr"
)
_MIDDLES = "a e i o u a e i o u ai ea ee ie oo ou"
_ENDS = "b d g l m n p r s t ck ct ft ld lt nd ng nt rd rm rn rt st"
_SUFFIXES = "s ed ing er ly ion able ment ness ise"
_VOCABULARY = 60_000
_HAN = "的一是不了在人有我他这中大来上个国到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么心多天而能好都然没日于起还发成事只作当想看文无开手十用主行方又如前所本见经头面公同三已老从动两长知民样现分将外但身些与高意进把法此实回二理美点月明其种声全工己话儿者向情部正名定女问力机给等几很业最间新什打便位因重被走电四第门相次东政海口使教西再平真听世气信北少关并内加化由却代军产入先山五太水万市眼体别处总才场师书比住员九笑性通目华报立马命张活难神数件安表原车白应路期叫死常提感金何更反合放做系计或司利受光王果亲界及今京务制解各任至清物台象记边共风战干接它许八特觉望直服毛林题建南度统色字请交爱让认算论百吃义科怎元社术结六功指思非流每青管夫连远资队跟带花快条院变联言权往展该领传近留红治决周保达办运武半候七必城父强步完革深区即求品士转量空甚众技轻程告江语英基派满式李息写呢识极令黄德收脸钱党倒未持取设始版双历越史商千片容研像找友孩站广改议形委早房音火际则首单据导影失拿网香似斯专石若兵弟谁校读志飞观争究包组造落视济喜离虽坏兴切团"  # noqa: E501
_KANA = "のにはをたがでとしれさあいるらこよもなかくりつうけせてまだ"
_PHRASE = ("harvest", "of", "tangled", "wires")
#: Stands in one message of a thousand, its words apart from each other in others.
PHRASE = " ".join(_PHRASE)


@dataclass(frozen=True, slots=True)
class Corpus:
    """A store that was made.

    Attributes:
        root: Its directory.
        conversations: How many.
        messages: How many in all of them.
        bytes: The size of the files together.
    """

    root: Path
    conversations: int
    messages: int
    bytes: int


@lru_cache
def _words() -> tuple[list[str], list[float]]:
    """The vocabulary, and the running sum of how often each word is said (Zipf and Mandelbrot)."""
    draw, found = random.Random(4), dict.fromkeys(_COMMON.split())
    starts, middles, suffixes = _STARTS.split(), _MIDDLES.split(), [*[""] * 6, *_SUFFIXES.split()]
    ends = [*[""] * 7, *_ENDS.split()]
    while len(found) < _VOCABULARY:
        often = len(found) < 400
        syllables = 1 if often else draw.choice([1, 2, 2, 2, 3])
        parts = (
            draw.choice(starts) + draw.choice(middles) + draw.choice(ends) for _ in range(syllables)
        )
        found.setdefault("".join(parts) + ("" if often else draw.choice(suffixes)))
    return list(found), list(
        itertools.accumulate(1 / (rank + 2.7) for rank in range(1, len(found) + 1))
    )


@lru_cache
def _characters() -> list[float]:
    return list(itertools.accumulate(1 / (rank + 2.7) for rank in range(1, len(_HAN) + 1)))


def _prose(draw: random.Random, length: int) -> str:
    words, sums = _words()
    said = draw.choices(words, cum_weights=sums, k=max(length // 7, 1))
    if draw.random() < 0.003:
        at = draw.randrange(len(said))
        said[at:at] = _PHRASE if draw.random() < 0.34 else draw.sample(_PHRASE, len(_PHRASE))
    sentence = draw.randint(7, 15)
    return (
        ". ".join(
            " ".join(said[at : at + sentence]).capitalize() for at in range(0, len(said), sentence)
        )
        + "."
    )


def _code(draw: random.Random, length: int) -> str:
    words, sums = _words()
    names = iter(draw.choices(words, cum_weights=sums, k=length // 4 + 8))
    lines = [f"def {next(names)}_{next(names)}({next(names)}: int) -> str:"]
    for first, second in zip(names, names, strict=False):
        lines.append(f'    {first}.{second} = self._{second}["{first}-{draw.randint(0, 99)}"]')
    return "```python\n" + "\n".join(lines)[:length] + "\n```"


def _east(draw: random.Random, length: int) -> str:
    said = draw.choices(_HAN, cum_weights=_characters(), k=max(length // 3, 4))
    if draw.random() < 0.3:
        said = [c + draw.choice(_KANA) if draw.random() < 0.6 else c for c in said]
    return "".join(c + ("。" if draw.random() < 0.05 else "") for c in said)


def _text(draw: random.Random) -> str:
    length = min(int(draw.lognormvariate(5.7, 0.9)), 30_000)
    kind = draw.random()
    if kind < 0.05:
        return _prose(draw, length // 2) + "\n\n" + _code(draw, length // 2 + 40)
    return _east(draw, length) if kind < 0.083 else _prose(draw, length)


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _conversation(number: int) -> tuple[str, bytes, int]:
    """One capsule, of its number and nothing else: its id, its bytes, and when it was
    changed last.
    """
    draw = random.Random(number)
    id = f"{draw.getrandbits(32):08x}-{number:04x}-4000-8000-{draw.getrandbits(48):012x}"
    start = moment = _BEGIN + timedelta(days=draw.random() * _DAYS)
    history = []
    for at in range(_MESSAGES):
        moment += timedelta(seconds=draw.expovariate(1 / 90))
        ms = int(moment.timestamp() * 1000)
        entry: dict[str, object] = {
            "role": "assistant" if at % 2 else "user",
            "content": _text(draw),
            "timestamp": _stamp(moment),
            "id": f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7{at:03x}-8000-{draw.getrandbits(48):012x}",
        }
        if at % 2 and draw.random() < 0.06:
            entry["toolCalls"] = [
                {"id": f"call_{at}", "name": "run", "arguments": {"code": _code(draw, 120)}}
            ]
        history.append(entry)
    words, sums = _words()
    document = new_capsule(
        id,
        " ".join(draw.choices(words, cum_weights=sums, k=5)).capitalize(),
        _stamp(start),
        type=draw.choice(["chat", "group"]),
        title_set_by="user",
        tags=draw.sample(["work", "home", "ideas", "release", "review"], draw.randint(0, 2)),
        messages=history,
    )
    document["updatedAt"] = history[-1]["timestamp"]
    return id, codec.encode(document), int(moment.timestamp()) * 1_000_000_000


def _write(directory: str, numbers: range) -> int:
    size = 0
    for number in numbers:
        id, data, changed_ns = _conversation(number)
        path = os.path.join(directory, f"{id}.json")
        with open(path, "xb") as file:
            size += file.write(data)
        # Last written when its last message was, as in a store that people work in.
        os.utime(path, ns=(changed_ns, changed_ns))
    return size


def make(root: Path, conversations: int, step: Step) -> Corpus:
    """Make a store of so many conversations, a hundred messages each; by as many processes as there
    are cores.

    Args:
        root: Its directory.
        conversations: How many.
        step: Called after every hundred conversations.
    """
    Store.init(root)
    # A hundred a piece, so that a step is a step.
    pieces = [
        range(first, min(first + 100, conversations)) for first in range(0, conversations, 100)
    ]
    size = 0
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for written in pool.map(_write, itertools.repeat(str(root / "conversations")), pieces):
            size += written
            step()
    os.sync()
    return Corpus(root, conversations, conversations * _MESSAGES, size)


def ensure(bench: Bench) -> Corpus:
    """The store of this run: made for who asks first, and kept until the run is over."""
    conversations = 500 if bench.quick else 10_000
    root = bench.shared / "corpus"
    directory = root / "conversations"
    if directory.exists():
        return Corpus(
            root,
            conversations,
            conversations * _MESSAGES,
            sum(e.stat().st_size for e in os.scandir(directory)),
        )
    with bench.progress(f"making {conversations:,} conversations", conversations // 100) as step:
        made = make(root, conversations, step)
    _check(made)
    return made


def _check(corpus: Corpus, sample: int = 20) -> None:
    """Make sure that the files are as the store writes them: valid, and canonical to the byte.

    Raises:
        AssertionError: One is not.
    """
    with Store.open(corpus.root) as store:
        for name in sorted(os.listdir(corpus.root / "conversations"))[
            :: corpus.conversations // sample
        ]:
            changes = store.edits.migrate(name.removesuffix(".json"), check=True)
            assert not changes, f"{name}: {changes}"


def rows(corpus: Corpus) -> Iterator[tuple[str, int, str, str, str, str, str | None]]:
    """Every message: its conversation, its place there, role, time, id, text, and its tool calls as
    text.
    """
    for path in sorted((corpus.root / "conversations").iterdir()):
        document = orjson.loads(path.read_bytes())
        for at, entry in enumerate(document["history"]):
            tools = orjson.dumps(entry["toolCalls"]).decode() if "toolCalls" in entry else None
            yield (
                document["id"],
                at,
                entry["role"],
                entry["timestamp"],
                entry["id"],
                entry["content"],
                tools,
            )
