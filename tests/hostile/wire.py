# SPDX-License-Identifier: Apache-2.0
"""The control protocol without the library: packets by the numbers of proto/dlx.proto, and what a
client does first."""

import array
import fcntl
import os
import socket

BODY = {
    "error": 2, "ok": 3, "hello": 10, "hello_reply": 11, "publisher_new": 12,
    "publisher_new_reply": 13, "publisher_ready": 14, "publisher_close": 15, "arena_new": 16,
    "arena_new_reply": 17, "arena_ready": 18, "arena_drop": 19, "subscribe": 20,
    "subscribe_reply": 21, "subscription_close": 22, "list_publishers": 23, "publisher_list": 24,
    "list_links": 25, "link_list": 26, "daemon_info": 27, "daemon_info_reply": 28, "disconnect": 29,
    "publisher_retains": 30, "retained_drop": 31, "retained_drop_reply": 32, "gpu_keep": 33,
    "gpu_get": 34, "list_quotas": 36, "quota_list": 37, "former_new": 38,
    "former_new_reply": 39, "link_added": 40, "former_ready": 42, "gpu_allocate": 43,
    "gpu_free": 44, "gpu_serve": 45, "gpu_memory": 46, "list_groups": 47, "group_list": 48,
    "list_claims": 49, "link_offer": 50, "link_ready": 51, "link_open": 52, "arena_added": 53,
    "arena_dropped": 54, "publisher_gone": 55, "link_failed": 56, "ack": 57, "link_close": 58,
    "spare_sealed": 59, "claim_list": 60, "groups_drop": 61, "observe": 62,
    "observe_reply": 63, "observed": 64, "list_subscriptions": 65, "subscription_list": 66,
    "list_refusals": 67, "refusal_list": 68, "list_clients": 69, "client_list": 70, "kick": 71,
    "kick_reply": 72,
}  # fmt: skip
NAME = {number: name for name, number in BODY.items()}
MAJOR, MINOR = 2, 1


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out) + bytes([n])


def message(fields):
    """Of {number: int, str or list of these}; what is 0 or empty is left out."""
    out = b""
    for number, value in sorted(fields.items()):
        if isinstance(value, list):
            out += b"".join(message({number: one}) for one in value)
        elif isinstance(value, str):
            out += (varint(number << 3 | 2) + varint(len(value)) + value.encode()) if value else b""
        elif value:
            out += varint(number << 3) + varint(value)
    return out


def packet(serial, body, fields=None):
    inner = message(fields or {})
    return message({1: serial}) + varint(BODY[body] << 3 | 2) + varint(len(inner)) + inner


def read_varint(data, at):
    n = shift = 0
    while True:
        byte = data[at]
        at += 1
        n |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return n, at


def parse(data):
    fields, at = {}, 0
    while at < len(data):
        tag, at = read_varint(data, at)
        value, at = read_varint(data, at)
        if tag & 7 == 2:
            value, at = data[at : at + value], at + value
        fields.setdefault(tag >> 3, value)
    return fields


class Reply:
    def __init__(self, data, fds):
        fields = parse(data)
        fields.pop(1, None)
        ((number, inner),) = fields.items()
        self.name, self.fields, self.fds = NAME.get(number, number), parse(inner), fds

    def get(self, number):
        return self.fields.get(number, 0)

    def close(self):
        for fd in self.fds:
            os.close(fd)
        return self


def receive(sock):
    data, ancillary, _, _ = sock.recvmsg(65536, socket.CMSG_SPACE(4 * 16))
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % 4])
    if not data:
        raise ConnectionError("the daemon closed the connection")
    return Reply(data, list(fds))


def connect(path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(20)
    s.connect(path)
    return s


def make_ready(fd, size, words=None, data=b""):
    """Step 2 of common/memory.h: touch every page, write some words, seal it against further
    writing."""
    os.pwrite(fd, data + bytes(size - len(data)), 0)
    for offset, word in (words or {}).items():
        os.pwrite(fd, word.to_bytes(8, "little"), offset)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0x10 | fcntl.F_SEAL_SEAL)  # F_SEAL_FUTURE_WRITE


class Connection:
    """A client that has sent Hello."""

    def __init__(self, path, max_links=60000, minor=MINOR):
        self.sock = connect(path)
        self.serial = 0
        reply = self.call("hello", {1: MAJOR, 2: minor, 3: "greedy", 4: max_links})
        if reply.name != "hello_reply":
            raise ConnectionError(f"Hello was answered with {reply.name}: {reply.get(2)}")

    def send(self, body, fields=None):
        self.serial += 1
        self.sock.send(packet(self.serial, body, fields))

    def call(self, body, fields=None):
        self.send(body, fields)
        return receive(self.sock)

    def publisher(
        self,
        topic,
        retain=0,
        retain_for_ns=0,
        published=0,
        history=1,
        on_full=0,
        n_entries=256,
        groups=None,
    ):
        """Announced. The reply of PublisherNew, with its descriptors, or the error."""
        how = {1: topic, 2: history, 3: n_entries, 4: on_full, 5: retain, 7: retain_for_ns, 10: 16}
        how[13] = groups or []
        reply = self.call("publisher_new", how)
        if reply.name != "publisher_new_reply":
            return reply
        # head and `published` of ring/layout.h
        make_ready(reply.fds[0], reply.get(2), {0: published, 128: published} if published else {})
        ready = self.call("publisher_ready", {1: reply.get(1)})
        return reply if ready.name == "ok" else ready

    def subscribe(self, topic, max_held=1, group=""):
        """The socket of the subscription, or None."""
        reply = self.call("subscribe", {1: topic, 5: max_held, 7: group, 9: 5 if group else 0})
        return socket.socket(fileno=reply.fds[0]) if reply.fds else None


def join_reply(sock, reader, holds=False):
    """Answer the next offer on a subscription socket. Returns LinkOpen with its descriptors, or
    None. `holds`: its page says for ever that it holds a message."""
    sock.settimeout(5)
    offer = receive(sock)
    if offer.name != "link_offer":
        offer.close()
        return None
    make_ready(
        offer.fds[0], offer.get(4), {2112: 1, 2120: 1} if holds else {}
    )  # n_used, and the first hold word
    offer.close()
    sock.send(packet(0, "link_ready", {1: offer.get(1), 2: reader}))
    sock.send(packet(0, "ack", {1: 1}))
    reply = receive(sock)
    return reply if reply.name == "link_open" else reply.close() and None


def join(sock, reader, holds=False):
    """The same. Returns whether there is a link."""
    reply = join_reply(sock, reader, holds)
    return bool(reply and reply.close())
