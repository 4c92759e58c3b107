#!/usr/bin/env python3
"""client.py ADDRESS [TOKEN] - an independent gRPC client looks at a live task.

Uses only our .proto files, compiled by protoc at run time, and generic calls. Prints "ok - ..." or
"not ok - ..." per check; exit code 1 if one failed.
"""
import os
import subprocess
import sys
import tempfile

import grpc

PROTO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "proto")
DEADLINE_S = 10
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
    def __init__(self, address, token):
        self.channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
        self.metadata = [("authorization", f"Bearer {token}")] if token else []

    def unary(self, path, request, reply, metadata=None):
        """(status code, details, reply or None); request is a message or bytes."""
        call = self.channel.unary_unary(
            path, request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            response_deserializer=reply.FromString)
        try:
            metadata = self.metadata if metadata is None else metadata
            return grpc.StatusCode.OK, "", call(request, timeout=DEADLINE_S, metadata=metadata)
        except grpc.RpcError as e:
            return e.code(), e.details(), None

    def stream(self, path, request, reply):
        call = self.channel.unary_stream(path, request_serializer=lambda m: m.SerializeToString(),
                                         response_deserializer=reply.FromString)
        return call(request, timeout=DEADLINE_S, metadata=self.metadata)

    def bidi(self, path, requests, reply):
        call = self.channel.stream_stream(path, request_serializer=lambda m: m.SerializeToString(),
                                          response_deserializer=reply.FromString)
        return list(call(iter(requests), timeout=DEADLINE_S))


def check_health(c, pb):
    path = "/grpc.health.v1.Health/"
    states = (pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING)

    code, _, reply = c.unary(path + "Check", pb.HealthCheckRequest(), pb.HealthCheckResponse, [])
    check("health Check of '' answers without a token", code == grpc.StatusCode.OK and
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
               "trainerd.v1.LeaveRequest.Kind", "grpc.health.v1.HealthCheckResponse.ServingStatus"]
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


def check_control(c, pb, token):
    code, details, s = c.unary("/trainerd.v1.Control/Status", pb.StatusRequest(), pb.StatusReply)
    check("Status answers", code == grpc.StatusCode.OK, (code, details))
    if s is not None:
        check("Status says who, what and in which state", s.self.type in ("chief", "worker") and
              s.self.address and s.version and s.job and s.state in
              ("joining", "waiting", "active", "draining", "leaving", "gone"), s)
        check("Status of the coordinator knows every task", all(
            t.state in ("missing", "joined", "active", "left") for t in s.tasks), s.tasks)
    code, details, _ = c.unary("/trainerd.v1.Control/Nothing", pb.StatusRequest(), pb.StatusReply)
    check("an unknown method is UNIMPLEMENTED", code == grpc.StatusCode.UNIMPLEMENTED and
          "Nothing" in details, (code, details))
    if token:
        for what, metadata in (("no token", []), ("a wrong token", [("authorization", "Bearer x")]),
                               ("another scheme", [("authorization", f"Basic {token}")]),
                               ("a longer token", [("authorization", f"Bearer {token}x")])):
            code, details, _ = c.unary("/trainerd.v1.Control/Status", pb.StatusRequest(), pb.StatusReply,
                                       metadata)
            check(f"{what} is UNAUTHENTICATED", code == grpc.StatusCode.UNAUTHENTICATED, (code, details))


def check_garbage(c, pb):
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    task = pb.Task(type="worker", index=0, address="a:1")
    rows = [
        ("bytes that are no message", "Heartbeat", b"\xff\xff\xff\xff"),
        ("an empty message", "Heartbeat", b""),
        ("a short incarnation", "Heartbeat", pb.HeartbeatRequest(task=task, incarnation=b"x")),
        ("a phase beyond its length", "Heartbeat",
         pb.HeartbeatRequest(task=task, incarnation=16 * b"x", phase=1000 * "p")),
        ("a task that is not in the cluster", "Heartbeat",
         pb.HeartbeatRequest(task=pb.Task(type="worker", index=999999), incarnation=16 * b"x")),
        ("a type that is not UTF-8", "Leave", b"\x0a\x04\x0a\x02\xc3\x28\x12\x10" + 16 * b"x"),
        ("a kind that does not exist", "Leave", pb.LeaveRequest(task=task, incarnation=16 * b"x")
         .SerializeToString() + b"\x28\x63"),
    ]
    for what, method, payload in rows:
        code, details, _ = c.unary(f"/trainerd.v1.Rendezvous/{method}", payload, pb.HeartbeatReply)
        # A task that is not the coordinator refuses what it can read, and says who is.
        good = code == invalid or (code == grpc.StatusCode.FAILED_PRECONDITION and
                                   "coordinator" in details)
        check(f"{what} is refused", good and details, (code, details))
    code, details, _ = c.unary("/trainerd.v1.Control/Status", (2 << 20) * b"\0", pb.StatusReply)
    check("a message of 2 MiB is refused", code == grpc.StatusCode.RESOURCE_EXHAUSTED, (code, details))
    amplified = b"\x0a\x00" * 400000  # tasks without anything: forty times as much in memory
    code, details, _ = c.unary("/trainerd.v1.Rendezvous/Heartbeat", amplified, pb.HeartbeatReply)
    check("a message of many empty ones is refused", code in (invalid, grpc.StatusCode.FAILED_PRECONDITION),
          (code, details))
    code, details, reply = c.unary(
        "/trainerd.v1.Rendezvous/Heartbeat", pb.HeartbeatRequest(task=task, incarnation=16 * b"x"),
        pb.HeartbeatReply)
    check("a heartbeat of an unknown incarnation is not known", (code == grpc.StatusCode.OK and
          not reply.known) or code in (invalid, grpc.StatusCode.FAILED_PRECONDITION), (code, details))
    code, _, _ = c.unary("/trainerd.v1.Control/Status", pb.StatusRequest(), pb.StatusReply)
    check("after all of this it still answers", code == grpc.StatusCode.OK, code)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    token = sys.argv[2] if len(sys.argv) == 3 else None
    generated = compile_protos()
    import health_pb2
    import reflection_pb2
    import trainerd_pb2

    c = Client(sys.argv[1], token)
    check_health(c, health_pb2)
    check_reflection(c, reflection_pb2)
    check_control(c, trainerd_pb2, token)
    check_garbage(c, trainerd_pb2)
    c.channel.close()
    generated.cleanup()
    sys.exit(1 if failed else 0)


main()
