"""Write the process-wide faces, `netchannel.aio` and `netchannel.process.blocking`, from the classes of asyncio.

Every public method has the signature that it has there, and runs there, on the services' thread. What needs a body of
its own is in the templates below, written for coroutines; the face for threads is the same text without ``async`` and
``await``.
"""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[2]
AIO, BLOCKING = Path("netchannel/aio.py"), Path("netchannel/process/blocking.py")

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A class of `netchannel.servers` that has a face, which holds one as ``attribute``."""

    name: str
    module: str
    attribute: str = "_channel"
    base: str = ""
    held: str = ""
    also: str = ""

    @property
    def holds(self) -> str:
        return f"{self.module}.{self.held or self.name}"


FACES = (
    Wrapped("SenderChannel", "sender_channel"),
    Wrapped("GroupChannel", "group_channels", base="SenderChannel"),
    Wrapped(
        "GroupClient",
        "group_channels",
        "_client",
        held="SharedGroupClient",
        also="; an async context manager",
    ),
    Wrapped("ReceiverChannel", "receiver_channel", also="; an async iterator"),
    Wrapped("RetainedChannel", "retained_channels"),
    Wrapped("ChannelReader", "reader", "_reader", also="; an async context manager"),
    Wrapped("Caller", "call_client", "_caller", also="; an async context manager"),
    Wrapped("Service", "call_service", "_service", also="; an async context manager"),
    Wrapped("SenderServer", "sender", "_server"),
    Wrapped("ReceiverServer", "receiver", "_server"),
)

INTERNAL = {
    "SenderServer": {"descriptors"},
    "ReceiverServer": {"descriptors", "inside"},
    "Caller": {"from_client"},
    "Service": {"detach"},
    "SenderChannel": {"committed", "core", "next_upquery", "put_back", "take"},
    "ReceiverChannel": {"next_item", "put_back", "read", "unreadable"},
    "ChannelReader": {
        "begin",
        "cancel",
        "decoded",
        "decoder",
        "from_client",
        "heads_within",
        "more",
        "renew",
        "schema_within",
        "to",
    },
}
"""What of the classes is for the package's own use, most of it for these faces."""
NOT_OF_A_PROCESS = {"SenderServer": {"address", "retain_channel"}}
"""Its sender does not listen."""
FROM_ANY_THREAD = {"SenderServer.statistics", "ReceiverServer.statistics"}
ON_THE_THREAD = {"RetainedChannel.latest"}
"""A property that is made of more than one thing, which must be of one moment."""

TEMPLATES = {
    "SenderChannel": '''
        async def send_many(self, batches: Iterable[Any]) -> None:
            """As `netchannel.SenderChannel.send_many`. A generator runs here, and may use other channels."""
            if isinstance(batches, list | tuple):
                await self._thread.run(self._channel.send_many(batches))
                return
            ticket = None
            try:
                for batch in batches:
                    if ticket is not None and ticket.error is not None:
                        break
                    ticket = await self._thread.run(self._channel.take(batch), sender_channel.leave)
            except BaseException:
                sender_channel.leave(ticket)
                raise
            if ticket is not None:
                await self._thread.run(self._channel.committed(ticket))

        async def recv_upquery(self) -> bytes:
            """As `netchannel.SenderChannel.recv_upquery`."""
            taken = await self._thread.run(self._channel.next_upquery(), self._channel.put_back)
            return taken.body
    ''',
    "GroupClient": '''
        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            self.close()

        def close(self) -> None:
            """Stop asking: calls that wait raise `ChannelClosed`."""
            self._thread.call(self._client.close)
    ''',
    "ReceiverChannel": '''
        def __aiter__(self) -> Self:
            return self

        async def __anext__(self) -> Any:
            try:
                return await self.recv()
            except EndOfChannel:
                raise StopAsyncIteration from None

        async def recv(self) -> Any:
            """As `netchannel.ReceiverChannel.recv`."""
            message = await self.recv_message()
            return message.batch

        async def recv_message(self) -> Message:
            """As `netchannel.ReceiverChannel.recv_message`."""
            item = await self._thread.run(self._channel.next_item(), self._channel.put_back)
            try:
                return self._channel.read(item)
            except ProtocolError as error:
                self._thread.tell(self._channel.unreadable, item.sequence, error)
                raise
    ''',
    "ChannelReader": '''
        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            await self.close()

        def read(self, first: Position | int, until: int) -> AsyncGenerator[Any, None]:
            """As `netchannel.ChannelReader.read`."""
            return Resumable(self._read(first, until))

        def read_messages(self, first: Position | int, until: int) -> AsyncGenerator[Message, None]:
            """As `netchannel.ChannelReader.read_messages`. While messages are decoded here, more arrive."""
            return Resumable(self._read_messages(first, until))

        async def _read(self, first: Position | int, until: int) -> AsyncGenerator[Iterator[Any], None]:
            async with aclosing(self._read_messages(first, until)) as runs:
                async for messages in runs:
                    yield (message.batch for message in messages)

        async def _read_messages(
            self, first: Position | int, until: int
        ) -> AsyncGenerator[Iterator[Message], None]:
            thread, there = self._thread, self._reader
            reading = await thread.run(there.begin(first, until), there.cancel)
            try:
                while chunks := await thread.run(there.more(reading)):
                    yield there.decoded(reading, chunks)
            finally:
                thread.tell(there.cancel, reading)
    ''',
}
TEMPLATES |= dict.fromkeys(
    ("Caller", "Service"),
    """
        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            await self.close()
    """,
)
TEMPLATES_FOR_THREADS = {
    "ReceiverChannel": '''
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            """The rest of the stream, for libraries that read Arrow: a batch for each message, as of `recv`."""
            import pyarrow

            schema = self.schema()
            if schema is None:
                raise TypeError(f"channel {self.id!r} has codec 'bytes': its messages are not Arrow batches")
            return pyarrow.RecordBatchReader.from_batches(schema, self).__arrow_c_stream__(requested_schema)
    ''',
    "ChannelReader": '''
        def heads(self, beyond: int | None = None, timeout: float | None = None) -> Heads:
            """As `netchannel.ChannelReader.heads`; raises TimeoutError after ``timeout`` seconds."""
            return self._thread.wait(self._reader.heads_within(beyond, timeout))

        def schema(self, timeout: float | None = None) -> pa.Schema | None:
            """As `netchannel.ChannelReader.schema`; raises TimeoutError after ``timeout`` seconds."""
            return self._thread.wait(self._reader.schema_within(timeout))
    ''',
}
"""What nobody can cancel takes a time."""

DOC_OF_AIO = """The process-wide services for coroutines, whichever event loop they run on.

The names are those of `netchannel.SenderServer`, `netchannel.ReceiverServer` and their channels. Awaitables run on the
services' own thread; decoding happens on the caller's."""
DOC_OF_BLOCKING = """The process-wide services as blocking objects, for code without an event loop (a Spark task).

The names are those of `netchannel.SenderServer`, `netchannel.ReceiverServer` and their channels; each call waits for
its result, and decoding happens on the caller's thread."""

MODULE = '''
"""{doc}

Written by ``make faces``: to change it, edit `netchannel.servers` or tests/development/faces.py.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import {typing}

from netchannel.errors import EndOfChannel, ProtocolError
from netchannel.process import services
from netchannel.resumable import Resumable
from netchannel.servers import call_client, group_channels, reader, sender_channel

if TYPE_CHECKING:
    from netchannel.servers import call_service, receiver, receiver_channel, retained_channels, sender
{imports}

__all__ = {public}

{classes}

def sender_server(
    *, secret: str | None = None, tls: Tls | None = None, shared_memory: int | None = None
) -> SenderServer:
    """Return the process-wide sender, which the first call starts. Settings are as for `netchannel.SenderServer`.

    Raises:
        NetChannelError: the first call had another secret, TLS or ``shared_memory``.
    """
    settings = services.Settings(secret, tls, shared_memory=shared_memory)
    return SenderServer(*services.services.sender(settings))


def receiver_server(
    address: str | None = None,
    *,
    secret: str | None = None,
    tls: Tls | None = None,
    message_limit: int | None = None,
    shared_memory: int | None = None,
) -> ReceiverServer:
    """Return the process-wide receiver. The first call binds ``address`` (a free port of 127.0.0.1 if None).

    The settings of the first call apply to all calls; they are those of `netchannel.ReceiverServer`.

    Raises:
        NetChannelError: the receiver is already bound to another address, or has other settings.
        OSError: the address cannot be bound.
    """
    settings = services.Settings(secret, tls, message_limit, shared_memory)
    return ReceiverServer(*services.services.receiver(address, settings))


def group_client(
    to: str,
    channel_id: str,
    *,
    secret: str | None = None,
    tls: Tls | None = None,
    fault: FaultPolicy | None = None,
) -> GroupClient:
    """Return a `netchannel.GroupClient` on the process-wide thread. All clients of a receiver share a connection."""
    thread, client = services.services.client(services.Trust(secret, tls))
    return GroupClient(thread, thread.call(group_channels.SharedGroupClient, client, to, channel_id, fault))


def caller(
    address: str,
    *,
    secret: str | None = None,
    tls: Tls | None = None,
) -> Caller:
    """Return a `netchannel.Caller` on the process-wide thread. All callers of a node share a connection."""
    thread, client = services.services.call_client(services.Trust(secret, tls))
    made = call_client.Caller.from_client(client, address)
    return Caller(thread, thread.wait(made.__aenter__()))


def channel_reader(
    to: str,
    channel_id: str,
    *,
    codec: CodecName = "arrow",
    secret: str | None = None,
    tls: Tls | None = None,
    fault: FaultPolicy | None = None,
) -> ChannelReader:
    """Return a reader of a channel that is retained at ``to``, with the settings of `netchannel.ChannelReader`.

    Returns at once. All readers of the process with the same address, secret and TLS share a connection for their
    requests.
    """
    thread, client = services.services.client(services.Trust(secret, tls))
    made = reader.ChannelReader.from_client(client, to, channel_id, codec=codec, fault=fault)
    return ChannelReader(thread, thread.wait(made.__aenter__()))
'''
FACTORIES = ("caller", "channel_reader", "group_client", "receiver_server", "sender_server")
_NAMES = "|".join(each.name for each in FACES)
WITHOUT_AWAITING = (
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"def __a(enter|exit|iter|next)__", r"def __\1__"),
    ("StopAsyncIteration", "StopIteration"),
    (r"AsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]"),
    (
        r"( +)return Resumable\((.+)\)",
        r"\1with closing(\2) as runs:\n\1    for run in runs:\n\1        yield from run",
    ),
    (r"from netchannel\.resumable import Resumable\n", ""),
    (r"\baclosing\b", "closing"),
    (r"thread\.run\(", "thread.wait("),
    (r"\ban async (iterator|context manager)", lambda found: _with_article(found[1])),
    (", from any loop", ", from any thread: the same names, and each call waits"),
    (rf"(?<![.\w])({_NAMES})\b", r"Blocking\1"),
)


def written() -> dict[Path, str]:
    """The two modules, as they are to be."""
    aio = _classes(TEMPLATES)
    blocking = _classes(
        {name: TEMPLATES.get(name, "") + TEMPLATES_FOR_THREADS.get(name, "") for name in TEMPLATES}
    )
    return {
        AIO: _module(AIO, DOC_OF_AIO, aio, threads=False),
        BLOCKING: _module(BLOCKING, DOC_OF_BLOCKING, blocking, threads=True),
    }


def _module(path: Path, doc: str, classes: str, *, threads: bool) -> str:
    public = sorted([*(each.name for each in FACES), *FACTORIES])
    fields = {"public": repr(public), "classes": classes, "doc": doc}
    bare = MODULE.format(typing="TYPE_CHECKING", imports="", **fields)
    wanted = _annotated(ast.parse(_for_threads(bare) if threads else bare))
    origins = _origins() | {"Generator": "collections.abc"}
    known = {name: origins[name] for name in sorted(wanted) if name in origins}
    typing = sorted(["TYPE_CHECKING", *(name for name, module in known.items() if module == "typing")])
    imports = [
        f"    import {module} as {name}" if module == "pyarrow" else f"    from {module} import {name}"
        for name, module in known.items()
        if module != "typing"
    ]
    text = MODULE.format(typing=", ".join(typing), imports="\n".join(imports), **fields).lstrip()
    return _ruffled(path, _for_threads(text) if threads else text)


def _for_threads(text: str) -> str:
    for what, instead in WITHOUT_AWAITING:
        text = re.sub(what, instead, text)
    return text


def _with_article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _ruffled(path: Path, text: str) -> str:
    for command in (["check", "--quiet", "--fix", "--select", "I"], ["format", "--quiet"]):
        asked = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        text = subprocess.run(
            asked, input=text, stdout=subprocess.PIPE, encoding="utf-8", check=True, cwd=ROOT
        ).stdout
    return text


# -- classes


def _classes(templates: dict[str, str]) -> str:
    return "\n\n".join(_class(each, templates.get(each.name, "")) for each in FACES)


def _class(of: Wrapped, template: str) -> str:
    (node,) = [
        each for each in _tree(of.module).body if isinstance(each, ast.ClassDef) and each.name == of.name
    ]
    by_hand = _by_name(template)
    left_out = INTERNAL.get(of.name, set()) | NOT_OF_A_PROCESS.get(of.name, set())
    methods = {name: text for name, text in by_hand.items() if name.startswith("__")}
    methods |= {name: _attribute(of, name, kind) for name, kind in _attributes(node) if name not in left_out}
    for each in node.body:
        is_public = isinstance(each, Function) and (
            each.name == "_repr_html_" or not each.name.startswith("_")
        )
        if is_public and each.name not in left_out:
            methods[each.name] = by_hand.get(each.name) or _method(of, each)
    methods = {**methods, **by_hand}
    return f"class {of.name}{_head(of)}\n\n" + textwrap.indent("\n\n".join(methods.values()), "    ") + "\n"


def _head(of: Wrapped) -> str:
    whence = "on the services' thread" if of.attribute == "_server" else "from any loop"
    doc = f'"""`netchannel.{of.name}`, {whence}{of.also}."""'
    if of.base:
        return f"({of.base}):\n    {doc}\n\n    {of.attribute}: {of.holds}"
    held = of.attribute.removeprefix("_")
    return (
        f":\n    {doc}\n\n    def __init__(self, thread: services.ServiceThread, {held}: {of.holds}) -> None:\n"
        f"        self._thread = thread\n        self.{of.attribute} = {held}"
    )


def _by_name(template: str) -> dict[str, str]:
    """The methods in a template, of which a later one takes the place of an earlier one."""
    text = textwrap.dedent(template)
    lines = text.splitlines()
    return {
        each.name: "\n".join(lines[each.lineno - 1 : each.end_lineno])
        for each in ast.parse(text).body
        if isinstance(each, Function)
    }


def _attributes(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """What a class makes public of what it is made with, and its type."""
    makers = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    for maker in makers:
        types = {each.arg: each.annotation for each in (*maker.args.args, *maker.args.kwonlyargs)}
        for each in maker.body:
            match each:
                case ast.Assign([ast.Attribute(ast.Name("self"), name)], ast.Name(given)) if given in types:
                    kind = types[given]
                    if not name.startswith("_") and kind is not None:
                        yield name, ast.unparse(kind)


def _attribute(of: Wrapped, name: str, kind: str) -> str:
    there = f"self.{of.attribute}.{name}"
    got = f"self._thread.call(lambda: {there})" if f"{of.name}.{name}" in ON_THE_THREAD else there
    return f"@property\ndef {name}(self) -> {kind}:\n    {_doc(of, name)}\n    return {got}"


def _method(of: Wrapped, node: Function) -> str:
    """One that has no template: as it is there, run there."""
    assert node.returns is not None
    returns = ast.unparse(node.returns)
    assert "Generator" not in returns, f"{node.name} wants a template"
    if [ast.unparse(each) for each in node.decorator_list] == ["property"]:
        return _attribute(of, node.name, returns)
    there = f"self.{of.attribute}.{node.name}"
    given = ", ".join(
        [
            *(each.arg for each in node.args.args[1:]),
            *(f"{each.arg}={each.arg}" for each in node.args.kwonlyargs),
        ]
    )
    waits = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    if waits:
        body = f"await self._thread.run({there}({given}))"
    elif f"{of.name}.{node.name}" in FROM_ANY_THREAD:
        body = f"{there}({given})"
    else:
        body = f"self._thread.call({there}{', ' if given else ''}{given})"
    if returns in {each.name for each in FACES}:
        body = f"{returns}(self._thread, {body})"
    if returns != "None":
        body = f"return {body}"
    signature = f"{waits}def {node.name}({ast.unparse(node.args)}) -> {returns}"
    return f"{signature}:\n    {_doc(of, node.name)}\n    {body}"


def _doc(of: Wrapped, name: str) -> str:
    return f'"""As `netchannel.{of.name}.{name}`."""'


# -- imports


def _tree(module: str) -> ast.Module:
    return ast.parse((ROOT / "netchannel" / "servers" / f"{module}.py").read_text(encoding="utf-8"))


def _origins() -> dict[str, str]:
    """Where the wrapped classes' modules have their names from."""
    found = {"pa": "pyarrow"}
    for module in {each.module for each in FACES}:
        for node in ast.walk(_tree(module)):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                above = "netchannel.servers." if node.level else ""
                found |= {each.asname or each.name: above + node.module for each in node.names}
    return found


def _annotated(tree: ast.Module) -> set[str]:
    """The names in annotations that are to be imported."""
    kinds: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, Function):
            kinds += [node.returns, *(each.annotation for each in (*node.args.args, *node.args.kwonlyargs))]
    names = {
        each.id for kind in kinds if kind is not None for each in ast.walk(kind) if isinstance(each, ast.Name)
    }
    made = {each.name for each in tree.body if isinstance(each, ast.ClassDef)}
    return names - made - set(dir(builtins)) - {each.module for each in FACES} - {"services"}


if __name__ == "__main__":
    for path, text in written().items():
        (ROOT / path).write_text(text, encoding="utf-8")
