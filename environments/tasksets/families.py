"""The families of the built-in task set: each draws one task from a random state.

From:  environments.tasksets.shell_and_python, which draws until a task is new.
To:    Draft records: instruction, start files, the expected end, and the shortest shell lines that reach it.
Holds: names and words are short and ordinary (a small policy must copy them exactly); the instruction alone says
       what to do, no file has to be read first.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random


def _words(text: str) -> list[str]:
    return text.split()


STEMS = _words(
    "notes list items names plan todo words lines log data menu songs books cities colors fruits animals tools "
    "report draft story recipe letter summary points facts rules ideas orders prices dates steps tasks teams games"
)
EXTENSIONS = ("txt", "txt", "md", "log", "csv")
FOLDERS = _words(
    "docs src lib data backup build old new tests images pages assets archive work tmp config models parts"
)
WORDS = _words(
    "red blue green apple pear plum lemon bread milk tea cat dog bird fish horse sun moon star rain snow wind river "
    "lake hill tree leaf stone sand iron gold silver paper pen book desk door window house road bridge train ship"
)
ADJECTIVES = _words("big small old new warm cold fast slow light dark quiet loud clean bright short long")
FUNCTION_NAMES = _words(
    "total combine result compute work apply value score amount change update measure check step mix "
    "join_up final answer output process"
)
MODULES = _words("calc math_tools helper util core main_part numbers logic sums ops shop price game bank")


@dataclass(frozen=True, kw_only=True)
class Draft:
    instruction: str
    files: dict[str, str]
    """Start files by path."""
    solution: tuple[str, ...]
    """One shell command each; together they earn reward 1."""
    after: dict[str, str] = field(default_factory=dict)
    """Files that must be there in the end; outer blank lines do not count."""
    absent: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    function_file: str = ""
    function: str = ""
    cases: tuple[tuple[tuple[object, ...], object], ...] = ()
    """Hidden calls: (arguments, result)."""


@dataclass(frozen=True, kw_only=True)
class GeneratedTask:
    name: str
    family: str
    split: str
    draft: Draft


def _file(random: Random, *taken: str) -> str:
    while True:
        name = f"{random.choice(STEMS)}.{random.choice(EXTENSIONS)}"
        if name.split(".")[0] not in {other.split(".")[0] for other in taken}:
            return name


def _phrase(random: Random) -> str:
    return f"{random.choice(ADJECTIVES)} {random.choice(WORDS)}"


def _lines(random: Random, least: int = 3, most: int = 6) -> list[str]:
    return random.sample(WORDS, random.randint(least, most))


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def draw_create(random: Random) -> Draft:
    name, phrase = _file(random), _phrase(random)
    wording = random.choice(
        (
            "Create the file {name} with the line: {phrase}",
            "Make a file {name} that contains the text '{phrase}'.",
            "Write '{phrase}' to a new file {name}.",
            "I need a file called {name}. Its only line is: {phrase}",
        )
    )
    return Draft(
        instruction=wording.format(name=name, phrase=phrase),
        files={},
        after={name: phrase + "\n"},
        solution=(f"echo '{phrase}' > {name}",),
    )


def draw_append(random: Random) -> Draft:
    name, phrase, start = _file(random), _phrase(random), _lines(random)
    wording = random.choice(
        (
            "Append the line '{phrase}' to {name}.",
            "Add '{phrase}' as the last line of {name}.",
            "At the end of {name}, add the line: {phrase}",
            "Put one more line at the end of {name}: {phrase}",
        )
    )
    return Draft(
        instruction=wording.format(name=name, phrase=phrase),
        files={name: _text(start)},
        after={name: _text([*start, phrase])},
        solution=(f"echo '{phrase}' >> {name}",),
    )


def draw_copy(random: Random) -> Draft:
    source = _file(random)
    target, text = _file(random, source), _text(_lines(random))
    wording = random.choice(
        (
            "Copy {source} to {target}.",
            "Make a copy of {source} called {target}.",
            "{target} should be a copy of {source}. Keep {source}.",
            "Duplicate {source} under the name {target}.",
        )
    )
    return Draft(
        instruction=wording.format(source=source, target=target),
        files={source: text},
        after={source: text, target: text},
        solution=(f"cp {source} {target}",),
    )


def draw_rename(random: Random) -> Draft:
    source = _file(random)
    target, text = _file(random, source), _text(_lines(random))
    wording = random.choice(
        (
            "Rename {source} to {target}.",
            "The file {source} should be called {target}.",
            "Give {source} the new name {target}.",
            "Move {source} to {target}.",
        )
    )
    return Draft(
        instruction=wording.format(source=source, target=target),
        files={source: text},
        after={target: text},
        absent=(source,),
        solution=(f"mv {source} {target}",),
    )


def draw_delete(random: Random) -> Draft:
    gone = _file(random)
    kept = _file(random, gone)
    text = _text(_lines(random))
    wording = random.choice(
        (
            "Delete the file {gone}.",
            "Remove {gone}, but keep {kept}.",
            "The file {gone} is not needed any more. Delete it.",
            "Please remove {gone}.",
        )
    )
    return Draft(
        instruction=wording.format(gone=gone, kept=kept),
        files={gone: _text(_lines(random)), kept: text},
        after={kept: text},
        absent=(gone,),
        solution=(f"rm {gone}",),
    )


def draw_mkdir(random: Random) -> Draft:
    outer, inner = random.sample(FOLDERS, 2)
    if random.random() < 0.5:
        wording = random.choice(
            (
                "Make the directory {outer}/{inner}.",
                "Create a folder {inner} inside a new folder {outer}.",
                "I need the directory {outer}/{inner}.",
            )
        )
        path = f"{outer}/{inner}"
        return Draft(
            instruction=wording.format(outer=outer, inner=inner),
            files={},
            directories=(path,),
            solution=(f"mkdir -p {path}",),
        )
    name, text = _file(random), _text(_lines(random))
    wording = random.choice(
        (
            "Make a directory {outer} and move {name} into it.",
            "Create the folder {outer} and put {name} there.",
            "Move {name} into a new directory {outer}.",
        )
    )
    return Draft(
        instruction=wording.format(outer=outer, name=name),
        files={name: text},
        after={f"{outer}/{name}": text},
        absent=(name,),
        directories=(outer,),
        solution=(f"mkdir -p {outer}", f"mv {name} {outer}/{name}"),
    )


def draw_sort(random: Random) -> Draft:
    source = _file(random)
    target, lines = _file(random, source), _lines(random, 4, 7)
    if lines == sorted(lines):
        lines.reverse()
    backwards = random.random() < 0.3
    wording = random.choice(
        (
            "Sort the lines of {source}{how} and write them to {target}.",
            "Write the sorted lines of {source}{how} to {target}.",
            "{target} should hold the lines of {source}, sorted{how}.",
        )
    )
    return Draft(
        instruction=wording.format(source=source, target=target, how=" in reverse order" if backwards else ""),
        files={source: _text(lines)},
        after={source: _text(lines), target: _text(sorted(lines, reverse=backwards))},
        solution=(f"sort {'-r ' if backwards else ''}{source} > {target}",),
    )


def draw_count(random: Random) -> Draft:
    source = _file(random)
    target, lines = _file(random, source), [_phrase(random) for _ in range(random.randint(3, 9))]
    unit, option, number = random.choice((("lines", "l", len(lines)), ("words", "w", 2 * len(lines))))
    wording = random.choice(
        (
            "Count the {unit} of {source} and write the number to {target}.",
            "Write the number of {unit} in {source} to {target}.",
            "How many {unit} does {source} have? Put the number in {target}.",
        )
    )
    return Draft(
        instruction=wording.format(unit=unit, source=source, target=target),
        files={source: _text(lines)},
        after={target: f"{number}\n"},
        solution=(f"wc -{option} < {source} > {target}",),
    )


def draw_replace(random: Random) -> Draft:
    name = _file(random)
    old, new, *others = random.sample(WORDS, 6)
    lines = [f"{random.choice(ADJECTIVES)} {word}" for word in (old, others[0], old, others[1])]
    random.shuffle(lines)
    wording = random.choice(
        (
            "Replace the word {old} with {new} everywhere in {name}.",
            "In {name}, change every {old} to {new}.",
            "Change {old} to {new} in the file {name}.",
            "{name} says {old} where it should say {new}. Replace it.",
        )
    )
    text = _text(lines)
    return Draft(
        instruction=wording.format(old=old, new=new, name=name),
        files={name: text},
        after={name: text.replace(old, new)},
        solution=(f"sed -i 's/{old}/{new}/g' {name}",),
    )


OPERATORS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "add": ("+", lambda a, b: a + b),
    "subtract": ("-", lambda a, b: a - b),
    "multiply": ("*", lambda a, b: a * b),
}


def draw_operator(random: Random) -> Draft:
    """The wrong operator stands between two names that the instruction gives."""
    module, function = f"{random.choice(MODULES)}.py", random.choice(FUNCTION_NAMES)
    first, second = random.choice((("a", "b"), ("x", "y"), ("m", "n"), ("p", "q")))
    wrong, right = random.sample(sorted(OPERATORS), 2)
    wrong_sign, right_sign = OPERATORS[wrong][0], OPERATORS[right][0]
    wording = random.choice(
        (
            "{function}({first}, {second}) in {module} returns {first} {wrong} {second}, but it should {verb}. Fix it.",
            "In {module}, {function}({first}, {second}) should {verb}, not return {first} {wrong} {second}.",
            "Fix {module}: it returns {first} {wrong} {second}, but {function} should {verb} {first} and {second}.",
        )
    )
    pattern = f"{first} {wrong_sign} {second}".replace("*", r"\*")
    compute = OPERATORS[right][1]
    pairs = [(random.randint(3, 20), random.randint(3, 20)) for _ in range(3)]
    return Draft(
        instruction=wording.format(
            function=function, module=module, first=first, second=second, wrong=wrong_sign, verb=right
        ),
        files={module: f"def {function}({first}, {second}):\n    return {first} {wrong_sign} {second}\n"},
        function_file=module,
        function=function,
        cases=tuple(((a, b), compute(a, b)) for a, b in pairs),
        solution=(f"sed -i 's/{pattern}/{first} {right_sign} {second}/' {module}",),
    )


def draw_off_by_one(random: Random) -> Draft:
    module, function = f"{random.choice(MODULES)}.py", random.choice(FUNCTION_NAMES)
    if random.random() < 0.5:
        start = random.choice((0, 1, 2, 3))
        wording = random.choice(
            (
                "{function}(n) in {module} uses range({start}, n) and misses n. It should include n.",
                "In {module}, range({start}, n) stops one too early. {function}(n) must include n.",
                "Fix {module}: {function}(n) sums range({start}, n), but n belongs to the sum.",
            )
        )
        return Draft(
            instruction=wording.format(function=function, module=module, start=start),
            files={module: f"def {function}(n):\n    return sum(range({start}, n))\n"},
            function_file=module,
            function=function,
            cases=tuple(((n,), sum(range(start, n + 1))) for n in (4, 7, 12)),
            solution=(f"sed -i 's/range({start}, n)/range({start}, n + 1)/' {module}",),
        )
    limit = random.randint(2, 99)
    wording = random.choice(
        (
            "{function}(x) in {module} tests x > {limit}, but {limit} itself should pass too.",
            "In {module}, {function}(x) uses x > {limit}. It should be true for {limit} as well.",
            "Fix {module}: x > {limit} in {function} should include {limit}.",
        )
    )
    return Draft(
        instruction=wording.format(function=function, module=module, limit=limit),
        files={module: f"def {function}(x):\n    return x > {limit}\n"},
        function_file=module,
        function=function,
        cases=(((limit - 1,), False), ((limit,), True), ((limit + 1,), True)),
        solution=(f"sed -i 's/x > {limit}/x >= {limit}/' {module}",),
    )


def draw_function(random: Random) -> Draft:
    """A new module of one line; a hidden test calls it."""
    function = random.choice(FUNCTION_NAMES)
    number = random.randint(2, 30)
    verb, word = random.choice((("add", "plus"), ("subtract", "minus"), ("multiply", "times")))
    sign, compute = OPERATORS[verb]
    wording = random.choice(
        (
            "Write {function}.py with a function {function}(x) that returns {words}.",
            "Create {function}.py. Its function {function}(x) returns {words}.",
            "I need a function {function}(x) in {function}.py that returns {words}.",
        )
    )
    return Draft(
        instruction=wording.format(function=function, words=f"x {word} {number}"),
        files={},
        function_file=f"{function}.py",
        function=function,
        cases=tuple(((x,), compute(x, number)) for x in (0, 3, 11)),
        solution=(f"echo 'def {function}(x): return x {sign} {number}' > {function}.py",),
    )


FAMILIES: dict[str, Callable[[Random], Draft]] = {
    "create": draw_create,
    "append": draw_append,
    "copy": draw_copy,
    "rename": draw_rename,
    "delete": draw_delete,
    "mkdir": draw_mkdir,
    "sort": draw_sort,
    "count": draw_count,
    "replace": draw_replace,
    "operator": draw_operator,
    "off-by-one": draw_off_by_one,
    "function": draw_function,
}
