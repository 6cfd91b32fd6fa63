"""A process that guesses passwords, so many at a time, until its input ends: it prints how often it
heard which refusal, and a line once all have begun. Its guesses cost it little: the proofs are
wrong, and nothing is computed for them. No test lives here.

    python guessers.py PORT CA.PEM COUNT [once]
"""

import json
import sys
from collections import Counter

import msgpack
import trio

from hightide.net.connection import FrameReader
from hightide.net.outbox import send_all
from hightide.net.tls import Tls, TlsFiles
from hightide.net.tls_stream import TlsNetwork
from hightide.protocol import login_messages as u
from hightide.protocol import wire


async def guess(network, port):
    """The refusal; raises `OSError` where there is none."""
    stream = await network.connect("127.0.0.1", port)
    try:
        frames = FrameReader(stream)

        async def ask(request):
            await send_all(stream, wire.encode_request(request, request_id=1, client=""))
            if (answer := await frames.next_frame()) is None:
                raise OSError("closed")
            return msgpack.unpackb(answer)

        await ask(u.SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
        answer = await ask(u.SaslAuthenticateRequest(data=b"n,,n=admin,r=abcdefgh"))
        nonce = answer["body"]["data"].split(b",")[0]
        proof = b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        answer = await ask(u.SaslAuthenticateRequest(data=b"c=biws,%b,p=%b" % (nonce, proof)))
        return answer["error"]["message"]
    finally:
        await stream.aclose()


async def main(port, authorities, count, again):
    heard = Counter()
    network = TlsNetwork(Tls(TlsFiles(authorities=authorities)), follows_files=False)

    async def guesses():
        while True:
            try:
                heard[await guess(network, port)] += 1
            except OSError as error:
                heard[f"{type(error).__name__}: {error}"] += 1
            if not again:
                return

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(guesses)
        print("begun", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        again = False
    print(json.dumps(heard))


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:] != ["once"])
