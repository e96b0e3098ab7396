"""The blocking TLS socket agrees on what our channels do: else another cipher would be measured."""

from __future__ import annotations

import ssl
from pathlib import Path

from benchmarks.certificates import HOST, issue, tls
from benchmarks.contestants import tls_socket
from netchannel.tls import Credentials


def agreed(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[str | None, object]:
    """Version and cipher of a handshake in memory."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=HOST), server.wrap_bio(up, down, server_side=True)]
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert all(end.getpeercert() for end in ends)  # each has shown its own
    (found,) = {(end.version(), end.cipher()) for end in ends}
    return found


def test_both_agree_on_one_version_and_cipher(tmp_path: Path) -> None:
    issue(tmp_path)
    ours = agreed(*(Credentials(tls(tmp_path), role).context() for role in ("sender", "receiver")))
    theirs = agreed(
        *(tls_socket._context(tmp_path, each) for each in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER))
    )
    assert ours[0] == "TLSv1.3"
    assert theirs == ours
