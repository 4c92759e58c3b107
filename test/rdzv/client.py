#!/usr/bin/env python3
"""client.py ADDRESS [FOLDER [IDENTITY]] - checks a running task with an independent gRPC client.

Uses only the .proto files of this project, compiled by protoc at run time, and generic calls.
Prints "ok - ..." or "not ok - ..." per check; exit code 1 if one failed. FOLDER has
tls.crt, tls.key and ca.crt: TLS. IDENTITY is JSON: a task of
the cluster that no process runs, and the identity of the group; with it the client also joins the
group.
"""
import json
import os
import queue
import subprocess
import sys
import tempfile
import time

import grpc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from kit import GUARD, wait_until  # noqa: E402

PROTO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "proto")
failed = 0


def check(what, holds, found=""):
    global failed
    found = "" if holds else ": found " + repr(found)[:600]
    print(f"{'ok' if holds else 'not ok'} - {what}{found}", flush=True)
    failed += not holds


def compile_protos():
    out = tempfile.TemporaryDirectory()
    subprocess.run(["protoc", f"-I{PROTO}", f"--python_out={out.name}", "trainerd.proto", "health.proto",
                    "reflection.proto"], check=True)
    sys.path.insert(0, out.name)
    return out


class Client:
    def __init__(self, address, folder):
        options = [("grpc.enable_http_proxy", 0)]
        if folder:
            authority, key, certificate = (open(os.path.join(folder, name), "rb").read()
                                           for name in ("ca.crt", "tls.key", "tls.crt"))
            credentials = grpc.ssl_channel_credentials(authority, key, certificate)
            self.channel = grpc.secure_channel(address, credentials, options=options)
        else:
            self.channel = grpc.insecure_channel(address, options=options)
        self.metadata = []

    def unary(self, path, request, reply, metadata=None):
        """Returns (status code, details, reply or None); request is a message or bytes."""
        call = self.channel.unary_unary(
            path, request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            response_deserializer=reply.FromString)
        try:
            metadata = self.metadata if metadata is None else metadata
            return grpc.StatusCode.OK, "", call(request, timeout=GUARD, metadata=metadata)
        except grpc.RpcError as e:
            return e.code(), e.details(), None

    def stream(self, path, request, reply):
        call = self.channel.unary_stream(path, request_serializer=lambda m: m.SerializeToString(),
                                         response_deserializer=reply.FromString)
        return call(request, timeout=GUARD, metadata=self.metadata)

    def bidi(self, path, requests, reply):
        call = self.channel.stream_stream(path, request_serializer=lambda m: m.SerializeToString(),
                                          response_deserializer=reply.FromString)
        return list(call(iter(requests), timeout=GUARD))


class Link:
    """One Join call: sends messages (or bytes), receives LeaderMessages."""

    def __init__(self, c, pb, metadata=None):
        self.pb, self.up = pb, queue.Queue()
        call = c.channel.stream_stream(
            "/trainerd.v1.Rendezvous/Join",
            request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            response_deserializer=pb.LeaderMessage.FromString)
        self.down = call(iter(self.up.get, None), timeout=GUARD,
                         metadata=c.metadata if metadata is None else metadata)

    def say(self, message):
        self.up.put(message if isinstance(message, bytes) else self.pb.MemberMessage(**message))

    def hear(self, kind):
        """Returns the next message of this kind, except Beat and Wait; None at the end."""
        for m in self.down:
            if m.WhichOneof("message") == kind:
                return getattr(m, kind)
            if m.WhichOneof("message") not in ("beat", "wait", "pause", "over"):
                return None
        return None

    def end(self):
        """Receives the remaining messages. Returns (status code, details)."""
        self.up.put(None)
        try:
            for _ in self.down:
                pass
        except grpc.RpcError:
            pass
        return self.down.code(), self.down.details()


def check_health(c, pb):
    path = "/grpc.health.v1.Health/"
    states = (pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING)

    code, _, reply = c.unary(path + "Check", pb.HealthCheckRequest(), pb.HealthCheckResponse, [])
    check("health Check of '' answers", code == grpc.StatusCode.OK and
          reply.status in states, (code, reply))
    code, _, reply = c.unary(path + "Check", pb.HealthCheckRequest(service="trainerd.v1.Control"),
                             pb.HealthCheckResponse, [])
    check("health Check of trainerd.v1.Control is SERVING", code == grpc.StatusCode.OK and
          reply.status == pb.HealthCheckResponse.SERVING, (code, reply))
    code, details, _ = c.unary(path + "Check", pb.HealthCheckRequest(service="x"), pb.HealthCheckResponse)
    check("health Check of an unknown service is NOT_FOUND", code == grpc.StatusCode.NOT_FOUND,
          (code, details))
    watch = c.stream(path + "Watch", pb.HealthCheckRequest(), pb.HealthCheckResponse)
    first = next(watch)
    check("health Watch begins with the present state", first.status in states, first)
    watch.cancel()
    watch = c.stream(path + "Watch", pb.HealthCheckRequest(service="x"), pb.HealthCheckResponse)
    first = next(watch)
    check("health Watch of an unknown service says SERVICE_UNKNOWN and stays open",
          first.status == pb.HealthCheckResponse.SERVICE_UNKNOWN, first)
    watch.cancel()


def check_reflection(c, pb):
    from google.protobuf import descriptor_pb2

    services = {"trainerd.v1.Rendezvous", "trainerd.v1.Control", "grpc.health.v1.Health",
                "grpc.reflection.v1alpha.ServerReflection"}
    symbols = ["trainerd.v1.Control", "trainerd.v1.Control.Status", "trainerd.v1.StatusReply",
               "trainerd.v1.MemberMessage", "grpc.health.v1.HealthCheckResponse.ServingStatus"]
    wrong = ["trainerd.v1.Contro", "trainerd.v1.Control.Statu", "trainerd.v1", "", "trainerd.v1.Control.",
             "x.y"]
    q = pb.ServerReflectionRequest
    for version in ("v1alpha", "v1"):
        path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        replies = c.bidi(path, [q(list_services="")] + [q(file_containing_symbol=s) for s in symbols],
                         pb.ServerReflectionResponse)
        listed = {s.name for s in replies[0].list_services_response.service}
        check(f"reflection {version} lists the services", listed == services, listed)
        good = len(replies) == 1 + len(symbols)
        for symbol, reply in zip(symbols, replies[1:]):
            files = [descriptor_pb2.FileDescriptorProto.FromString(b)
                     for b in reply.file_descriptor_response.file_descriptor_proto]
            good &= (len(files) == 1 and symbol.startswith(files[0].package + ".") and
                     reply.original_request.file_containing_symbol == symbol)
        check(f"reflection {version} finds the file of a service, method, message and enum", good, replies)
    replies = c.bidi(path, [q(file_containing_symbol=s) for s in wrong] +
                     [q(file_by_filename="no.proto"), q(all_extension_numbers_of_type="trainerd.v1.Task")],
                     pb.ServerReflectionResponse)
    check("reflection answers NOT_FOUND for what is not there",
          len(replies) == len(wrong) + 2 and all(r.error_response.error_code == 5 for r in replies), replies)
    reply = c.bidi(path, [q(file_by_filename="trainerd.proto")], pb.ServerReflectionResponse)[0]
    file = descriptor_pb2.FileDescriptorProto.FromString(
        reply.file_descriptor_response.file_descriptor_proto[0])
    check("reflection gives trainerd.proto by its name", [s.name for s in file.service] ==
          ["Rendezvous", "Control"], file.service)


def check_control(c, pb):
    code, details, s = c.unary("/trainerd.v1.Control/Status", pb.StatusRequest(), pb.StatusReply)
    check("Status answers", code == grpc.StatusCode.OK, (code, details))
    if s is not None:
        check("Status reports the task, the version, the job and the state", s.self.type in ("chief", "worker") and
              s.self.address and s.version and s.job and s.state in
              ("seeking", "following", "leading", "ended"), s)
        check("Status lists every task", len(s.tasks) > 0 and all(
            t.state in ("missing", "joined", "active", "unknown") for t in s.tasks), s.tasks)
    code, details, _ = c.unary("/trainerd.v1.Control/Nothing", pb.StatusRequest(), pb.StatusReply)
    check("an unknown method is UNIMPLEMENTED", code == grpc.StatusCode.UNIMPLEMENTED and
          "Nothing" in details, (code, details))


def check_clear_text(plain, pb, health):
    """A client without TLS may call the health service alone, as a probe of Kubernetes does."""
    code, details, _ = plain.unary("/trainerd.v1.Control/Status", pb.StatusRequest(), pb.StatusReply,
                                   [("authorization", "Bearer a secret that all tasks share")])
    check("Status in clear text is UNAUTHENTICATED", code == grpc.StatusCode.UNAUTHENTICATED and "TLS" in details,
          (code, details))
    code, details = Link(plain, pb).end()
    check("a link in clear text is UNAUTHENTICATED", code == grpc.StatusCode.UNAUTHENTICATED, (code, details))
    code, _, reply = plain.unary("/grpc.health.v1.Health/Check", health.HealthCheckRequest(), health.HealthCheckResponse)
    check("health Check in clear text answers", code == grpc.StatusCode.OK, (code, reply))


def self_of(c, pb):
    return c.unary("/trainerd.v1.Control/Status", pb.StatusRequest(), pb.StatusReply)[2].self


def check_garbage(c, pb):
    invalid, refused = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
    me = self_of(c, pb)
    task = pb.Task(type=me.type, index=me.index, address="a:1")
    stranger = pb.Task(type="worker", index=999999)
    join = dict(task=task, to=task, incarnation=7, n_devices=1)
    rows = [
        ("bytes that are not a message", b"\xff\xff\xff\xff", invalid),
        ("an empty message", b"", invalid),
        ("a Beat before Join", dict(beat=pb.Beat(step=1)), invalid),
        ("a Join without an incarnation", dict(join=pb.Join(**{**join, "incarnation": 0})), invalid),
        ("a Join without a task", dict(join=pb.Join(incarnation=7, n_devices=1)), invalid),
        ("a Join without devices", dict(join=pb.Join(**{**join, "n_devices": 0})), invalid),
        ("a Join of a generation without successor",
         dict(join=pb.Join(**{**join, "generation": 2**64 - 1})), invalid),
        ("a Join with a location that is no path", dict(join=pb.Join(**{**join, "location": "rack/../:h"})), invalid),
        ("a Join with control characters", dict(join=pb.Join(**{**join, "version": "1\n2"})), invalid),
        ("a Join with a type that is not UTF-8",
         b"\x0a\x0d\x0a\x04\x0a\x02\xc3\x28\x11" + 8 * b"x", invalid),
        ("a Join of a task that is not in the cluster",
         dict(join=pb.Join(**{**join, "task": stranger})), refused),
        ("a Join of the task that is called",
         dict(join=pb.Join(**join)), grpc.StatusCode.UNAVAILABLE),
        ("many empty messages, forty times as much in memory", b"\x0a\x00" * 400000, None),
    ]
    for what, message, expected in rows:
        link = Link(c, pb)
        link.say(message)
        code, details = link.end()
        check(f"{what} is refused", code == expected or (expected is None and code == invalid),
              (code, details))
    link = Link(c, pb)
    link.say((2 << 20) * b"\0")
    code, details = link.end()
    check("a message of 2 MiB is refused", code == grpc.StatusCode.RESOURCE_EXHAUSTED, (code, details))
    code, details = Link(c, pb).end()
    check("a link without a word may end", code == grpc.StatusCode.OK, (code, details))
    silent = [Link(c, pb) for _ in range(100)]
    for _ in range(20):
        flood = Link(c, pb)
        for _ in range(500):
            flood.say(dict(beat=pb.Beat(step=1)))
    code, _, _ = c.unary("/trainerd.v1.Control/Status", pb.StatusRequest(), pb.StatusReply)
    check("100 silent links and a flood of messages keep it from nothing", code == grpc.StatusCode.OK, code)
    check("the flood is refused", flood.end()[0] == invalid)
    for link in silent:
        link.down.cancel()
        link.up.put(None)
    code, details, _ = c.unary("/trainerd.v1.Control/Status", (2 << 20) * b"\0", pb.StatusReply)
    check("a request of 2 MiB is refused", code == grpc.StatusCode.RESOURCE_EXHAUSTED, (code, details))


def stay_below_the_limit():
    """Pauses between two requests of a loop, which would exceed the limit of requests of this address."""
    time.sleep(0.2)


def check_who(c, pb, identity):
    who = "/trainerd.v1.Rendezvous/Who"
    invalid, refused = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
    stranger = pb.Where(task=pb.Task(type="worker", index=999999), incarnation=7)
    code, details, _ = c.unary(who, pb.WhoRequest(where=stranger), pb.WhoReply)
    check("Who of another cluster is refused", code == refused and details, (code, details))
    if identity is None:
        return
    mine = identity["cluster_hash"]
    for what, where in (("without saying who", None), ("without an incarnation", pb.Where(task=stranger.task)),
                        ("of a task that is not in the cluster", stranger)):
        code, details, _ = c.unary(who, pb.WhoRequest(where=where, cluster_hash=mine), pb.WhoReply)
        check(f"Who {what} is refused", code == invalid and details, (code, details))
    me = pb.Where(task=pb.Task(type=identity["type"], index=identity["index"]), incarnation=7)
    code, details, _ = c.unary(who, pb.WhoRequest(where=me, cluster_hash="x"), pb.WhoReply)
    check("Who of a task of another cluster is refused", code == refused and details, (code, details))
    request = pb.WhoRequest(where=me, cluster_hash=identity["cluster_hash"])
    answer = [c.unary(who, request, pb.WhoReply)]

    def has_view():  # a busy machine loses members for a moment
        if answer[0][2] is None or answer[0][2].where.has_view:
            return True
        stay_below_the_limit()
        answer[0] = c.unary(who, request, pb.WhoReply)
        return False
    wait_until(has_view)
    code, details, reply = answer[0]
    check("Who says who leads", code == grpc.StatusCode.OK and reply.where.has_view and
          reply.where.task.index == self_of(c, pb).index and reply.where.leader.index == 0 and
          reply.where.generation > 0, (code, details, reply))


def check_number_of_a_stranger(c, pb, facts):
    """A stranger joins as the task with the highest number of a call, and goes: the task still joins."""
    def join(call):
        """Returns the kind of the first answer; None: the link was ended."""
        link = Link(c, pb)
        link.say(dict(join=pb.Join(**{**facts, "call": call})))
        try:
            return next(link.down).WhichOneof("message")
        except grpc.RpcError:
            return None
        finally:
            link.down.cancel()
    accepted = ("wait", "beat", "view")
    kind = join(2 ** 64 - 1)
    check("a Join with the highest number of a call is accepted", kind in accepted, kind)
    wait_until(lambda: join(1) in accepted)  # as soon as the link of the stranger is closed
    check("the number of a closed link does not count", True)


def check_member(c, pb, identity):
    """Joins the group, takes part in a view, is replaced, and leaves."""
    to = self_of(c, pb)
    task = pb.Task(type=identity["type"], index=identity["index"], address="nowhere:1")
    facts = {k: v for k, v in identity.items() if k not in ("type", "index")}
    facts.update(task=task, to=to, incarnation=77, data_address="127.0.0.1:9", host_key="elsewhere",
                 location="rack/host", call=1)

    wrong = Link(c, pb)
    wrong.say(dict(join=pb.Join(**{**facts, "job_digest": "0ther"})))
    refuse = wrong.hear("refuse")
    check("a Join that differs is refused with both sides", refuse is not None and refuse.ends and
          refuse.code == 2 and "0ther" in refuse.reason and identity["job_digest"] in refuse.reason, refuse)
    check("and its link ends with OK", wrong.end()[0] == grpc.StatusCode.OK)

    if to.index == 0:
        check_number_of_a_stranger(c, pb, facts)
    link = Link(c, pb)
    link.say(dict(join=pb.Join(**{**facts, "call": 2})))
    link.say(dict(ready=pb.Ready()))
    if to.index != 0:
        redirect = link.hear("redirect")
        check("a follower redirects joining tasks to its leader",
              redirect is not None and redirect.task.index == 0, redirect)
        check("and ends their link with OK", link.end()[0] == grpc.StatusCode.OK)
        return
    view = link.hear("view")
    check("a member that is ready gets a view", view is not None and len(view.key) == 32 and
          [m.task.index for m in view.members] == [0, 1, 2] and view.members[2].incarnation == 77 and
          view.members[2].host_key == "elsewhere" and view.members[0].data_address and
          [m.location for m in view.members] == ["", "", "rack/host"], view)
    check("and beats", link.hear("beat") is not None)
    for step in range(3000):
        link.say(dict(beat=pb.Beat(generation=view.generation, step=step, phase="flood")))
    def shown():
        return c.unary("/trainerd.v1.Control/Status", pb.StatusRequest(), pb.StatusReply)[2]
    wait_until(lambda: shown().tasks[2].step >= 2999)
    status = shown()
    check("its beats are in the Status", status.tasks[2].step == 2999 and
          status.tasks[2].phase == "flood" and status.tasks[2].state == "active", status)

    older = Link(c, pb)
    older.say(dict(join=pb.Join(**{**facts, "call": 1})))
    code, details = older.end()
    check("an abandoned call does not replace its newer call",
          code == grpc.StatusCode.UNAVAILABLE and "newer call" in details, (code, details))
    other = Link(c, pb)
    other.say(dict(join=pb.Join(**{**facts, "incarnation": 78})))
    refuse = other.hear("refuse")
    check("a second process of a live task is refused and may try again", refuse is not None and
          not refuse.ends and "another process runs as worker 2" in refuse.reason, refuse)
    check("and its link ends with OK", other.end()[0] == grpc.StatusCode.OK)
    wrong = Link(c, pb)
    wrong.say(dict(join=pb.Join(**{**facts, "incarnation": 80, "job_digest": "0ther"})))
    refuse = wrong.hear("refuse")
    check("a second process with another job is refused permanently", refuse is not None and refuse.ends and
          refuse.code == 2 and "0ther" in refuse.reason and identity["job_digest"] in refuse.reason, refuse)
    link.say(dict(beat=pb.Beat(generation=view.generation, step=3000, phase="flood")))
    link.down.cancel()
    other = Link(c, pb)
    other.say(dict(join=pb.Join(**{**facts, "incarnation": 78, "call": 2})))
    other.say(dict(ready=pb.Ready()))
    view = other.hear("view")
    check("the second process gets a view", view is not None and
          view.members[2].incarnation == 78, view)
    other.say(dict(join=pb.Join(**{**facts, "incarnation": 78})))
    code, details = other.end()
    check("a second Join on a link ends it", code == grpc.StatusCode.INVALID_ARGUMENT and
          "first message" in details, (code, details))

    last = Link(c, pb)
    last.say(dict(join=pb.Join(**{**facts, "incarnation": 79})))
    last.say(dict(ready=pb.Ready()))
    view = last.hear("view")
    last.say(dict(leave=pb.Leave(code=143, reason="enough")))
    last.say(dict(ready=pb.Ready(generation=view.generation)))
    refuse = last.hear("refuse")
    check("who leaves is released", refuse is not None and refuse.ends and refuse.code == 143, refuse)
    check("and its link ends with OK", last.end()[0] == grpc.StatusCode.OK)


def main():
    if len(sys.argv) not in (2, 3, 4):
        sys.exit(__doc__)
    folder = sys.argv[2] if len(sys.argv) > 2 else None
    identity = json.loads(sys.argv[3]) if len(sys.argv) > 3 else None
    generated = compile_protos()
    import health_pb2
    import reflection_pb2
    import trainerd_pb2

    c = Client(sys.argv[1], folder)
    if folder:
        plain = Client(sys.argv[1], None)
        check_clear_text(plain, trainerd_pb2, health_pb2)
        plain.channel.close()
    check_health(c, health_pb2)
    check_reflection(c, reflection_pb2)
    check_control(c, trainerd_pb2)
    check_garbage(c, trainerd_pb2)
    check_who(c, trainerd_pb2, identity)
    if identity is not None:
        check_member(c, trainerd_pb2, identity)
    code, _, _ = c.unary("/trainerd.v1.Control/Status", trainerd_pb2.StatusRequest(),
                         trainerd_pb2.StatusReply)
    check("the task still answers afterwards", code == grpc.StatusCode.OK, code)
    c.channel.close()
    generated.cleanup()
    sys.exit(1 if failed else 0)


main()
