"""How channels show themselves in a notebook."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pyarrow as pa

import netchannel
from netchannel.process import services

ROWS = pa.record_batch({"n": [1, 2, 3]})
ID = "<script>alert('&')</script>"


class Table(HTMLParser):
    """The cells of a table by the heads of their rows; a tag that none has is an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.cells: dict[str, str] = {}
        self.caption = ""
        self._tag = self._head = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert tag in ("table", "caption", "tr", "th", "td"), tag
        self._tag = tag

    def handle_data(self, data: str) -> None:
        match self._tag:
            case "caption":
                self.caption += data
            case "th":
                self._head = data
            case "td":
                self.cells[self._head] = data


async def test_a_channel_is_a_table_of_its_address_state_and_counters() -> None:
    async with (
        netchannel.ReceiverServer("127.0.0.1:0") as receiver,
        netchannel.SenderServer() as sender,
    ):
        inbox = receiver.register_channel(ID)
        outbox = sender.register_channel(ID, to=receiver.address)
        for _ in range(1_200):
            await outbox.send(ROWS)
        await inbox.recv()
        await outbox.flush()
        sent = Table(outbox._repr_html_())
        assert sent.caption == f"SenderChannel {ID}"
        assert sent.cells["to"] == receiver.address
        assert (sent.cells["state"], sent.cells["sent"], sent.cells["acknowledged"]) == (
            "attached",
            "1,200",
            "1,200",
        )
        received = Table(inbox._repr_html_())
        assert received.caption == f"ReceiverChannel {ID}"
        assert (received.cells["received"], received.cells["buffered_messages"]) == ("1,200", "1,199")
        await inbox.close()


def test_blocking_and_kept_channels_show_the_same() -> None:
    receiver, sender = netchannel.receiver_server(), netchannel.sender_server()
    inbox = receiver.retain_channel("kept", netchannel.RetainPolicy(max_bytes=1_000_000))
    outbox = sender.register_channel("kept", to=receiver.address)
    outbox.send(ROWS)
    outbox.flush()
    assert Table(outbox._repr_html_()).cells["acknowledged"] == "1"
    assert Table(inbox._repr_html_()).cells["state"] == "attached"
    assert not re.search(r"<td></td>", inbox._repr_html_())
    outbox.close()
    inbox.close()
    services.services.leave()
