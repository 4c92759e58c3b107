#!/usr/bin/python3
"""config/kubernetes: what every variant must have, compared with the program and with each other. `make kubernetes` validates
the files against the schemas of Kubernetes."""
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile

import yaml

from kit import BUILD, GUARD, ROOT, Skip, TRAINERD, digits_job, enter_namespaces, main, need_namespaces, need_program, test, workdir

FOLDER = os.path.join(ROOT, "config", "kubernetes")
VARIANTS = {"job.yaml": "Job", "statefulset.yaml": "StatefulSet", "jobset.yaml": "JobSet", "tfjob.yaml": "TFJob",
            "trainjob.yaml": "TrainingRuntime"}


def read(name):
    with open(os.path.join(FOLDER, name)) as f:
        return list(yaml.safe_load_all(f))


def the(kind, name="common.yaml"):
    found = [d for d in read(name) if d["kind"] == kind]
    assert len(found) == 1, (kind, name)
    return found[0]


def job_of(variant):
    """Returns the spec of the Job that the variant has, or None."""
    spec = the(VARIANTS[variant], variant)["spec"]
    if variant == "job.yaml":
        return spec
    if variant == "trainjob.yaml":
        spec = spec["template"]["spec"]
    jobs = spec.get("replicatedJobs")
    return jobs[0]["template"]["spec"] if jobs else None


def template_of(variant):
    spec = the(VARIANTS[variant], variant)["spec"]
    job = job_of(variant)
    return job["template"] if job else spec["template"] if "template" in spec else spec["tfReplicaSpecs"]["Worker"]["template"]


def environment(container):
    return {e["name"]: e for e in container["env"]}


@test
def kubernetes_every_file_is_a_known_variant():
    assert {os.path.basename(p) for p in glob.glob(FOLDER + "/*.yaml")} == {"common.yaml", "secret.yaml", *VARIANTS}


@test
def kubernetes_pods_are_restricted_and_limited():
    for variant in VARIANTS:
        pod = template_of(variant)["spec"]
        context, (container,) = pod["securityContext"], pod["containers"]
        assert context["runAsNonRoot"] and context["runAsUser"] == 65532 and context["fsGroup"] == 65532, variant
        assert context["seccompProfile"] == {"type": "RuntimeDefault"} and pod["automountServiceAccountToken"] is False, variant
        inner = container["securityContext"]
        assert inner == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}, variant
        assert container["resources"]["requests"] == container["resources"]["limits"], variant
        assert re.fullmatch(r"[1-9]\d*", container["resources"]["limits"]["cpu"]), variant  # whole cores
        mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
        volumes = {v["name"]: v for v in pod["volumes"]}
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory" and "emptyDir" in volumes[mounts["/tmp"]], variant
        assert volumes[mounts["/training"]]["persistentVolumeClaim"]["claimName"] == the("PersistentVolumeClaim")["metadata"]["name"]
        rule = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"]
        assert rule["topologyKey"] == "kubernetes.io/hostname", variant
        assert rule["labelSelector"]["matchLabels"].items() <= template_of(variant)["metadata"]["labels"].items(), variant


@test
def kubernetes_pods_of_all_variants_are_equal_but_for_what_differs():
    """The pods differ in names, TF_CONFIG, the probes and what the operators decide."""
    def rest(variant):
        pod = json.loads(json.dumps(template_of(variant)["spec"]))
        for key in ("subdomain", "restartPolicy"):
            pod.pop(key, None)
        c = pod["containers"][0]
        for key in ("name", "command", "startupProbe", "livenessProbe", "readinessProbe"):
            c.pop(key)
        c["ports"] = [p["containerPort"] for p in c["ports"]]
        c["env"] = [e for e in c["env"] if e["name"] not in ("TF_CONFIG", "TRAINERD_KEEP_RESTARTS")]
        return pod
    for variant in VARIANTS:
        assert rest(variant) == rest("job.yaml"), variant


@test
def kubernetes_probes_ask_the_services_of_the_control_port():
    for variant in VARIANTS:
        c = template_of(variant)["spec"]["containers"][0]
        port = c["ports"][0]["containerPort"]
        probes = [c[p] for p in ("startupProbe", "livenessProbe", "readinessProbe")]
        for p in probes:
            assert p.get("exec", {}).get("command") == ["trainerd-keep", "--alive"] or p["grpc"]["port"] == port, (variant, p)
            assert p.get("grpc", {}).get("service", "trainerd.v1.Control") == "trainerd.v1.Control", (variant, p)
        assert probes[0]["periodSeconds"] * probes[0]["failureThreshold"] >= 60, variant
        # an operator whose DNS names may need ready pods must not wait for training
        assert ("service" in probes[2]["grpc"]) == (variant == "tfjob.yaml"), variant


@test
def kubernetes_grace_period_covers_step_and_save():
    with open(os.path.join(ROOT, "config", "job.schema.json")) as f:
        grace = json.load(f)["properties"]["train"]["properties"]["grace_seconds"]["default"]
    for variant in VARIANTS:
        assert template_of(variant)["spec"]["terminationGracePeriodSeconds"] > 2 * grace, variant


@test
def kubernetes_every_variant_ends_after_a_permanent_failure():
    for variant in VARIANTS:
        job = job_of(variant)
        if job:
            assert job["activeDeadlineSeconds"] > 0 and 0 < job["backoffLimit"] <= 1000, variant
            assert job["template"]["spec"]["restartPolicy"] == "Never" and job["completionMode"] == "Indexed", variant
            assert job["completions"] == job["parallelism"], variant
        elif variant == "tfjob.yaml":
            policy = the("TFJob", variant)["spec"]["runPolicy"]
            assert policy["activeDeadlineSeconds"] > 0 and 0 < policy["backoffLimit"] <= 1000
            assert the("TFJob", variant)["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] == "ExitCode"
        else:
            c = template_of(variant)["spec"]["containers"][0]
            assert c["command"] == ["trainerd-keep"] and int(environment(c)["TRAINERD_KEEP_RESTARTS"]["value"]) <= 1000


@test
def kubernetes_common_objects_select_the_pods():
    labels = [template_of(v)["metadata"]["labels"] for v in VARIANTS]
    service, policy, budget = the("Service")["spec"], the("NetworkPolicy")["spec"], the("PodDisruptionBudget")["spec"]
    for selector in (service["selector"], policy["podSelector"]["matchLabels"], budget["selector"]["matchLabels"]):
        assert all(selector.items() <= l.items() for l in labels), selector
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"] is True
    assert the("StatefulSet", "statefulset.yaml")["spec"]["serviceName"] == the("Service")["metadata"]["name"]
    assert template_of("job.yaml")["spec"]["subdomain"] == the("Service")["metadata"]["name"]
    # pods of a Job: a number of pods, and no share or maximum
    assert budget["minAvailable"] == job_of("job.yaml")["completions"] - 1 and "maxUnavailable" not in budget
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    own = [{"podSelector": policy["podSelector"]}]
    assert {"from": own} in policy["ingress"] and {"to": own} in policy["egress"]  # every port between tasks


@test
def kubernetes_cluster_of_each_variant_resolves_to_the_task_of_its_host_name():
    need_namespaces()
    hosts = {"job.yaml": "digits-1", "statefulset.yaml": "digits-1", "jobset.yaml": "digits-worker-0-1", "trainjob.yaml": "digits-node-0-1"}
    for variant, host in hosts.items():
        env = {name: e["value"] for name, e in environment(template_of(variant)["spec"]["containers"][0]).items() if "value" in e}
        env.pop("TRAINERD_JOB")
        p = subprocess.run(["unshare", "--uts", "sh", "-c", 'hostname "$1" && exec "$2" --check', "sh", host, TRAINERD],
                           env={**os.environ, **env}, capture_output=True, text=True, timeout=GUARD)
        assert p.returncode == 0, (variant, p.stderr)
        cluster = json.loads(p.stdout)["cluster"]
        text = json.dumps(cluster)
        assert '"worker 1"' in text or ('"index": 1' in text), (variant, text)
        assert host + "." in text and text.count(":2222") >= 2, (variant, text)


@test
def kubernetes_secret_is_in_no_file_that_is_applied_again():
    for name in ("common.yaml", *VARIANTS):
        assert "Secret" not in [d["kind"] for d in read(name)], name
    assert [d["kind"] for d in read("secret.yaml")] == ["Secret"]


@test
def kubernetes_service_has_the_ports_of_the_containers_and_the_policy_admits_every_dns():
    ports = {p["name"]: p["port"] for p in the("Service")["spec"]["ports"]}
    for variant in VARIANTS:
        assert sorted(ports.values()) == sorted(p["containerPort"] for p in template_of(variant)["spec"]["containers"][0]["ports"]), variant
    dns = [rule for rule in the("NetworkPolicy")["spec"]["egress"] if {"protocol": "UDP", "port": 53} in rule.get("ports", [])]
    peers = json.dumps([rule["to"] for rule in dns])
    assert "kube-system" in peers and "169.254.20.10/32" in peers, peers  # kube-dns, and NodeLocal DNSCache
    assert all({p["port"] for p in rule["ports"]} == {53} for rule in dns)


@test
def kubernetes_placeholder_of_the_secret_is_refused():
    token = the("Secret", "secret.yaml")["stringData"]["token"]
    e = environment(template_of("job.yaml")["spec"]["containers"][0])["TRAINERD_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert e == {"name": the("Secret", "secret.yaml")["metadata"]["name"], "key": "token"}
    config = {"cluster": {"worker": ["127.0.0.1:2222"]}, "task": {"type": "worker", "index": 0}}
    p = subprocess.run([TRAINERD, "--job", digits_job(workdir()), "--devices", "cpu:1"], capture_output=True, text=True, timeout=GUARD,
                       env={**os.environ, "TF_CONFIG": json.dumps(config), "TRAINERD_TOKEN": token})
    assert p.returncode == 2 and "the token" in p.stderr, p


def image():
    """Fills a folder with the content of the image; returns its path, or skips the test."""
    need_program("busybox")
    folder = os.path.join(workdir(), "image")
    subprocess.run([os.path.join(ROOT, "scripts", "image"), folder], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "BUILD": os.path.relpath(BUILD, ROOT)})
    return folder


@test
def image_is_below_40_mb_and_has_no_writable_or_privileged_file():
    folder = image()
    with tempfile.TemporaryFile() as f:
        tar = subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE)
        subprocess.run(["gzip", "-6"], stdin=tar.stdout, stdout=f, check=True)
        assert tar.wait() == 0
        size = f.tell() if f.tell() else os.fstat(f.fileno()).st_size
    assert size < 40e6, "the compressed layer has %.1f MB" % (size / 1e6)
    for base, _, names in os.walk(folder):
        for name in names:
            mode = os.lstat(os.path.join(base, name)).st_mode
            assert os.path.islink(os.path.join(base, name)) or not mode & 0o6022, name
    with open(os.path.join(FOLDER, "Containerfile")) as f:
        text = f.read()
    assert text.count("\nFROM ") == 2 and "FROM scratch" in text and "USER 65532:65532" in text


@test
def image_trains_read_only_as_its_user():
    need_namespaces()
    folder = image()
    source = os.path.join(ROOT, "config", "digits")
    training = workdir()
    os.chmod(training, 0o777)
    for name in os.listdir(source):
        shutil.copy(os.path.join(source, name), training)
    script = """set -e
mount --bind "$1" "$1" && mount --bind "$2" "$1/training" && mount -t proc proc "$1/proc" && mount -t tmpfs -o mode=1777 none "$1/tmp"
mount -o remount,ro,bind "$1"
exec chroot --userspec=65532:65532 "$1" /usr/bin/trainerd --job /training/digits.json --devices cpu:1"""
    # a mount namespace of its own: the mounts vanish with the program
    p = subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", folder, training], capture_output=True, text=True, timeout=GUARD,
                       env={"PATH": "/usr/sbin:/usr/bin:/bin"})
    if "userspec" in p.stderr or "Invalid argument" in p.stderr:
        raise Skip("no user with another number here: " + p.stderr.strip())
    assert p.returncode == 0 and "the job is complete" in p.stderr, p
    assert os.path.exists(os.path.join(training, "run", "digits.onnx"))
    assert os.stat(os.path.join(training, "run")).st_uid == 65532


if __name__ == "__main__":
    enter_namespaces()
    main()
