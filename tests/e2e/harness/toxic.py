"""A TCP proxy that does to connections what networks do: delays, cuts them short, flips a bit.

It stands at an address of its own before a node's port, so it is what other nodes have as that node's
address. A connection is known by its first frame: control, or bulk (tiles and Commits). One thread with
an event loop; `toxic` may be set from any other, and counts from then on.
"""
import asyncio
import socket
import struct
import threading
import time

CHUNK = 64 * 1024
CHUNKS_WAITING = 16  # read and not yet passed on, for each direction
UP, DOWN = "up", "down"  # from who dialled; to it
CONTROL, BULK = "control", "bulk"
MAGIC, HEADER_BYTES, LENGTH_AT = b"BATN", 64, 48  # baton/wire/frames.h
BULK_FIELD = 12  # of Hello, baton/wire/messages.proto
CONNECT_S = 5
TURN_S = 0.02  # how often who is held looks whether it still is

KINDS = ("delay", "rate", "dribble", "cut", "half_close", "flip", "stall", "partition")


class Toxic:
    """What is done to the bytes of the connections that `lane` and `direction` name (None: of all).

    delay       each byte arrives `seconds` later
    rate        no more than `at` bytes a second
    dribble     the first `at` bytes go one by one
    cut         both ends see a reset after byte `at`
    half_close  after byte `at` the receiver sees the end, the sender nothing
    flip        one bit of byte `at` is another
    stall       after byte `at` nothing comes for `seconds`, then the rest
    partition   nothing comes, on no connection, as long as the toxic is set

    Bytes are counted over all connections together, from 0. `hits` says how often it did something.
    """

    def __init__(self, kind, lane=None, direction=None, at=0, seconds=0.0):
        assert kind in KINDS, kind
        self.kind, self.lane, self.direction, self.at, self.seconds = kind, lane, direction, at, seconds
        self.seen = self.hits = 0

    def __str__(self):
        where = f"{self.lane or 'all'} {self.direction or 'both ways'}"
        return f"{self.kind} {where} at {self.at}, {self.seconds:g} s"

    def matches(self, lane, direction):
        return self.lane in (None, lane) and self.direction in (None, direction)


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def is_bulk(hello):
    """Whether the Hello in these Protobuf bytes announces a bulk connection."""
    at = 0
    while at < len(hello):
        tag, at = _varint(hello, at)
        if tag & 7 == 0:
            value, at = _varint(hello, at)
            if tag >> 3 == BULK_FIELD:
                return bool(value)
        elif tag & 7 == 2:
            length, at = _varint(hello, at)
            at += length
        else:
            at += {1: 8, 5: 4}[tag & 7]
    return False


class _Cut(OSError):
    """A toxic ended the connection."""


class _Link:
    """One connection through the proxy."""

    def __init__(self, near, far):
        self.near, self.far, self.lane = near, far, None
        self.ended = set()  # directions in which nothing is passed on any more

    def close(self, reset):
        for side in (self.near, self.far):
            if reset:
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            side.close()


async def _end(tasks):
    """No socket may be closed while the loop watches it for one of them."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Proxy:
    """Listens at `address` and passes everything on to `target` ("host:port")."""

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self.target = (host, int(port))
        self.toxic = None  # a Toxic, or None: in good health
        self.accepted = {CONTROL: 0, BULK: 0, None: 0}
        self.passed = {}  # (lane, direction) -> bytes
        self._listener = socket.create_server((host, 0))
        self._listener.setblocking(False)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._tasks = set()
        self._thread = threading.Thread(target=self._run, name=f"toxic {self.address}", daemon=True)
        self._thread.start()

    def close(self):
        """Ends all connections."""
        def stop():
            for task in asyncio.all_tasks(self._loop):
                task.cancel()

        self._loop.call_soon_threadsafe(stop)
        self._thread.join(10)

    def _run(self):
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._accept())
        except asyncio.CancelledError:
            pass
        rest = asyncio.all_tasks(self._loop)
        for task in rest:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        self._loop.close()
        self._listener.close()

    def _spawn(self, coroutine):
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self):
        while True:
            near, _ = await self._loop.sock_accept(self._listener)
            near.setblocking(False)
            self._spawn(self._serve(near))

    async def _first_frame(self, near):
        """The dialler's Hello as it came, and the lane; less than that from who is no node of ours."""
        data = b""
        wanted = len(MAGIC)
        while len(data) < wanted:
            more = await self._loop.sock_recv(near, wanted - len(data))
            if not more:
                return data, None
            data += more
            if data[:len(MAGIC)] != MAGIC[:len(data)]:
                return data, None
            if len(data) >= len(MAGIC):
                wanted = HEADER_BYTES
            if len(data) >= HEADER_BYTES:
                wanted = HEADER_BYTES + struct.unpack_from("<Q", data, LENGTH_AT)[0]
        return data, BULK if is_bulk(data[HEADER_BYTES:]) else CONTROL

    async def _serve(self, near):
        far = socket.socket()
        far.setblocking(False)
        link = _Link(near, far)
        directions = []
        reset = True
        try:
            for side in (near, far):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            first, link.lane = await self._first_frame(near)
            self.accepted[link.lane] += 1
            await asyncio.wait_for(self._loop.sock_connect(far, self.target), CONNECT_S)
            directions = [self._spawn(self._direction(link, UP, near, far, first)),
                          self._spawn(self._direction(link, DOWN, far, near, b""))]
            await asyncio.gather(*directions)
            reset = False
        except (OSError, asyncio.TimeoutError):
            pass  # one end is gone or a toxic struck: both ends see a reset
        finally:
            await _end(directions)
            link.close(reset)

    async def _direction(self, link, direction, source, sink, first):
        """Passes on until the source ends. Errors: OSError, when either end is gone."""
        chunks = asyncio.Queue(CHUNKS_WAITING)
        reader = self._spawn(self._read(source, chunks, first))
        try:
            while (chunk := await chunks.get()) is not None:
                if isinstance(chunk, OSError):
                    raise chunk
                await self._pass(link, direction, sink, *chunk)
            if direction not in link.ended:
                link.ended.add(direction)
                sink.shutdown(socket.SHUT_WR)
        finally:
            await _end([reader])

    async def _read(self, source, chunks, first):
        try:
            data = first or await self._loop.sock_recv(source, CHUNK)
            while data:
                await chunks.put((data, time.monotonic()))
                data = await self._loop.sock_recv(source, CHUNK)
            await chunks.put(None)
        except OSError as error:
            await chunks.put(error)

    async def _pass(self, link, direction, sink, data, arrived):
        toxic = self.toxic
        while toxic is not None and toxic.kind == "partition":
            toxic.hits += 1
            await asyncio.sleep(TURN_S)
            toxic = self.toxic
        if direction in link.ended:
            return
        lane = (link.lane, direction)
        self.passed[lane] = self.passed.get(lane, 0) + len(data)
        if toxic is None or not toxic.matches(*lane):
            await self._loop.sock_sendall(sink, data)
        else:
            await getattr(self, f"_{toxic.kind}")(toxic, link, direction, sink, data, arrived)

    async def _delay(self, toxic, _link, _direction, sink, data, arrived):
        toxic.hits += 1
        await asyncio.sleep(max(0.0, arrived + toxic.seconds - time.monotonic()))
        await self._loop.sock_sendall(sink, data)

    async def _rate(self, toxic, _link, _direction, sink, data, _arrived):
        toxic.hits += 1
        piece_bytes = max(1, toxic.at // 50)
        for begin in range(0, len(data), piece_bytes):
            piece = data[begin:begin + piece_bytes]
            await self._loop.sock_sendall(sink, piece)
            await asyncio.sleep(len(piece) / toxic.at)

    async def _dribble(self, toxic, _link, _direction, sink, data, _arrived):
        alone = min(len(data), max(0, toxic.at - toxic.seen))
        toxic.seen += len(data)
        for index in range(alone):
            toxic.hits += 1
            await self._loop.sock_sendall(sink, data[index:index + 1])
            await asyncio.sleep(0)
        await self._loop.sock_sendall(sink, data[alone:])

    @staticmethod
    def _split(toxic, data):
        """What comes before byte `at`, and what from there on; the whole and None when it is not here."""
        begin, toxic.seen = toxic.seen, toxic.seen + len(data)
        if not begin <= toxic.at < toxic.seen:
            return data, None
        toxic.hits += 1
        return data[:toxic.at - begin], data[toxic.at - begin:]

    async def _cut(self, toxic, _link, _direction, sink, data, _arrived):
        before, rest = self._split(toxic, data)
        await self._loop.sock_sendall(sink, before)
        if rest is not None:
            raise _Cut("cut")

    async def _half_close(self, toxic, link, direction, sink, data, _arrived):
        before, rest = self._split(toxic, data)
        await self._loop.sock_sendall(sink, before)
        if rest is not None:
            link.ended.add(direction)
            sink.shutdown(socket.SHUT_WR)

    async def _flip(self, toxic, _link, _direction, sink, data, _arrived):
        before, rest = self._split(toxic, data)
        if rest is not None:
            rest = bytes([rest[0] ^ (1 << toxic.at % 8)]) + rest[1:]
        await self._loop.sock_sendall(sink, before + (rest or b""))

    async def _stall(self, toxic, _link, _direction, sink, data, _arrived):
        before, rest = self._split(toxic, data)
        await self._loop.sock_sendall(sink, before)
        if rest is not None:
            await asyncio.sleep(toxic.seconds)
            await self._loop.sock_sendall(sink, rest)
