"""What a Dockerfile says, line by line."""

import pytest

from asyncrl.errors import ConfigError
from asyncrl.extensions.sandbox_images.dockerfile import PATH, Context, CopyStep, FolderStep, RunStep, parse

CONTEXT = Context(
    {"one": b"1", "a/two.txt": b"2", "a/b/three.txt": b"3", "Dockerfile": b""}, frozenset({"one"})
)


def steps(text):
    return parse(f"FROM x\n{text}", CONTEXT).steps


def copies(text):
    (step,) = [step for step in steps(text) if isinstance(step, CopyStep)]
    return {name: target for target, name in step.targets}


def test_lines_are_followed_in_their_order_with_what_was_set_before_them():
    recipe = parse(
        '# syntax\nARG V=12\nFROM debian:${V} \nENV A=1 B="two words"\nworkdir /srv\nRUN make \\\n  # why\n  all\n'
        'ENV A=2\nWORKDIR $A/${C:-c}\nRUN ["tool", "--flag"]\nCMD run\nLABEL x=y\nUSER root\n',
        CONTEXT,
    )
    assert (recipe.base, recipe.workdir, recipe.runs) == ("debian:12", "/srv/2/c", True)
    assert dict(recipe.env) == {"PATH": PATH, "A": "2", "B": "two words"}
    folder, made, inner, tool = recipe.steps
    assert (folder, inner) == (FolderStep("/srv"), FolderStep("/srv/2/c"))
    assert isinstance(made, RunStep) and isinstance(tool, RunStep)
    assert made.argv[:2] == ("/bin/sh", "-c") and made.argv[2].split() == ["make", "all"]
    assert (made.cwd, dict(made.env)["A"]) == ("/srv", "1")
    assert (tool.argv, tool.cwd, dict(tool.env)["A"]) == (("tool", "--flag"), "/srv/2/c", "2")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("COPY one /bin/", {"one": "/bin/one"}),
        ("COPY one /bin/first", {"one": "/bin/first"}),
        ("COPY --chmod=755 a /x", {"a/two.txt": "/x/two.txt", "a/b/three.txt": "/x/b/three.txt"}),
        ("COPY . .", {"one": "/one", "a/two.txt": "/a/two.txt", "a/b/three.txt": "/a/b/three.txt"}),
        ("COPY a/*.txt /x/", {"a/two.txt": "/x/two.txt"}),
        ("COPY one a/two.txt /x", {"one": "/x/one", "a/two.txt": "/x/two.txt"}),
        ('ADD ["one", "/a name"]', {"one": "/a name"}),
    ],
)
def test_copied_files_lie_where_docker_puts_them(line, found):
    assert copies(line) == found


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("FROM other", "a second stage is not followed"),
        ("COPY --from=build a b", "files of another stage"),
        ("ADD https://example.org/a b", "not fetched"),
        ('SHELL ["bash"]', "SHELL is not followed; let a container engine build such an image"),
        ("USER app", "another user"),
        ("RUN <<EOF", "here-document"),
        ("COPY missing .", "the context has no 'missing'"),
        ("ENV A", "ENV needs NAME=VALUE"),
    ],
)
def test_a_line_that_cannot_be_followed_is_refused_by_name(line, message):
    with pytest.raises(ConfigError, match=f"Dockerfile: line .*{message}"):
        steps(line)


def test_the_digest_changes_with_text_files_and_modes_alone():
    text = "FROM x\nCOPY . .\nRUN make"
    first = parse(text, CONTEXT).digest()
    assert parse(text, Context(dict(CONTEXT.files), frozenset({"one"}))).digest() == first
    others = [
        parse(f"{text} all", CONTEXT),
        parse(text, Context({**CONTEXT.files, "one": b"2"}, CONTEXT.executable)),
        parse(text, Context(CONTEXT.files)),
    ]
    assert len({first, *(other.digest() for other in others)}) == 4
