/* test_control.c - the services Control and Health, and an independent client. */
#include "rdzv/kit.h"

#include "base/buf.h"
#include "base/fs.h"
#include "proto/trainerd.pb-c.h"
#include "tls/keys.h"
#include "tls/tls.h"

static Trainerd__V1__StatusReply *status(const char *address, const struct tls *tls)
{
    Trainerd__V1__StatusReply *s;
    struct err err = { 0 };
    void *packed;
    size_t n;

    if (rdzv_call(address, tls, NULL, "Status", SOON_MS, &packed, &n, &err) < 0)
        fail_msg("%s", err.text);
    s = trainerd__v1__status_reply__unpack(NULL, n, packed);
    free(packed);
    assert_non_null(s);
    return s;
}

static void status_reports_members_and_progress(void **state)
{
    struct cluster *c = open_cluster(2);
    Trainerd__V1__StatusReply *s;

    (void)state;
    post(&c->nodes[1], do_step);
    post(&c->nodes[1], do_step);
    s = status(c->addresses[0], NULL);
    for (uint64_t until_ms = clock_ms() + SOON_MS; /* waits for a heartbeat */
         (s->tasks[1]->step < 2 || s->tasks[1]->heard_ms >= 1000) && clock_ms() < until_ms;) {
        trainerd__v1__status_reply__free_unpacked(s, NULL);
        usleep(20000);
        s = status(c->addresses[0], NULL);
    }
    assert_string_equal(s->state, "leading");
    assert_string_equal(s->job, "digits");
    assert_string_equal(s->self->address, c->addresses[0]);
    assert_int_equal(s->generation, c->nodes[0].generation);
    assert_int_equal(s->leader->index, 0);
    assert_int_equal(s->n_view, 2);
    assert_int_equal(s->view[1]->index, 1);
    assert_int_equal(s->n_tasks, 2);
    assert_true(s->tasks[1]->present);
    assert_string_equal(s->tasks[1]->state, "active");
    assert_string_equal(s->phase, "train");
    assert_string_equal(s->tasks[1]->phase, "reduce");
    assert_int_equal(s->tasks[1]->step, 2);
    assert_int_equal(s->tasks[1]->step_held, 2);
    assert_true(s->tasks[1]->incarnation == c->nodes[1].incarnation);
    assert_true(s->tasks[1]->heard_ms < 1000);
    assert_true(s->tasks[1]->samples_per_second == 125);
    trainerd__v1__status_reply__free_unpacked(s, NULL);
    s = status(c->addresses[1], NULL);
    assert_string_equal(s->state, "following");
    assert_int_equal(s->leader->index, 0);
    assert_int_equal(s->self->index, 1);
    assert_int_equal(s->n_view, 2);
    trainerd__v1__status_reply__free_unpacked(s, NULL);
    kill_node(c, 1);
    WAIT_FOR(SOON_MS, is_group(c, "0") || c->nodes[0].n_aborts == 1);
    s = status(c->addresses[0], NULL);
    assert_non_null(strstr(s->cause, "worker 1 (127.0.0.1:"));
    assert_non_null(strstr(s->cause, "was lost: its connection closed"));
    assert_false(s->tasks[1]->present);
    assert_string_equal(s->tasks[1]->state, "missing");
    assert_string_equal(s->tasks[1]->phase, "");
    trainerd__v1__status_reply__free_unpacked(s, NULL);
    close_cluster(c);
}

static void status_of_a_waiting_task_reports_other_tasks_as_unknown(void **state)
{
    struct cluster *c = new_cluster(3);
    Trainerd__V1__StatusReply *s;

    (void)state;
    c->opts.min_world = 3;
    open_node(c, 0);
    open_node(c, 1);
    s = status(c->addresses[1], NULL);
    for (uint64_t until_ms = clock_ms() + SOON_MS; s->leader == NULL && clock_ms() < until_ms;) {
        trainerd__v1__status_reply__free_unpacked(s, NULL);
        usleep(20000);
        s = status(c->addresses[1], NULL);
    }
    assert_string_equal(s->state, "following");
    assert_int_equal(s->generation, 0);
    assert_string_equal(s->tasks[0]->state, "joined");
    assert_string_equal(s->tasks[1]->state, "joined");
    assert_string_equal(s->tasks[2]->state, "unknown");
    trainerd__v1__status_reply__free_unpacked(s, NULL);
    s = status(c->addresses[0], NULL);
    assert_string_equal(s->tasks[1]->state, "joined");
    assert_string_equal(s->tasks[2]->state, "missing");
    trainerd__v1__status_reply__free_unpacked(s, NULL);
    close_cluster(c);
}

static void checkpoint_and_drain_are_answered_or_refused(void **state)
{
    struct cluster *c = open_cluster(3);
    Trainerd__V1__CheckpointReply *reply;
    struct err err = { 0 };
    void *packed = NULL;
    size_t n;

    (void)state;
    assert_int_equal(rdzv_call(c->addresses[0], NULL, NULL, "Checkpoint", SOON_MS, &packed, &n, &err), 0);
    reply = trainerd__v1__checkpoint_reply__unpack(NULL, n, packed);
    free(packed);
    assert_int_equal(reply->step, 42);
    assert_string_equal(reply->path, "run/step-00000042");
    trainerd__v1__checkpoint_reply__free_unpacked(reply, NULL);
    assert_int_equal(rdzv_call(c->addresses[1], NULL, NULL, "Checkpoint", SOON_MS, &packed, &n, &err),
                     ERR_REFUSED);
    assert_non_null(strstr(err.text, ": this task does not write checkpoints: ask the chief"));
    assert_int_equal(rdzv_call(c->addresses[1], NULL, NULL, "Drain", SOON_MS, &packed, &n, &err), 0);
    free(packed);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 143);
    join_node(&c->nodes[1]);
    WAIT_FOR(SOON_MS, is_group(c, "02"));
    assert_int_equal(rdzv_call("127.0.0.1:1", NULL, NULL, "Status", SOON_MS, &packed, &n, &err),
                     ERR_PEER);
    assert_string_equal(err.text, "Status of 127.0.0.1:1: connect: Connection refused");
    assert_int_equal(rdzv_call("127.0.0.1", NULL, NULL, "Status", SOON_MS, &packed, &n, &err), ERR_INPUT);
    assert_non_null(strstr(err.text, "'127.0.0.1': expected HOST:PORT"));
    close_cluster(c);
}

static void stop_on_any_task_ends_the_job_everywhere(void **state)
{
    struct cluster *c = open_cluster(3);
    struct err err = { 0 };
    void *packed;
    size_t n;

    (void)state;
    assert_int_equal(rdzv_call(c->addresses[1], NULL, NULL, "Stop", SOON_MS, &packed, &n, &err), 0);
    free(packed);
    for (uint32_t i = 0; i < 3; i++)
        WAIT_FOR(SOON_MS, c->nodes[i].code == 143);
    close_cluster(c);
}

/* ---- TLS ---- */

static struct tls *of_token(const char *token)
{
    const char *const hosts[] = { "127.0.0.1" };
    struct tls *t = NULL;
    struct err err;

    if (tls_open_token(token, hosts, 1, &t, &err) < 0)
        fail_msg("%s", err.text);
    return t;
}

static const char secret[] = "a secret that all tasks share";

static void caller_or_task_without_the_token_is_rejected(void **state)
{
    struct cluster *c = new_cluster(2);
    struct tls *tls = of_token(secret), *wrong = of_token("A secret that all tasks share");
    struct rdzv_opts other;
    struct err err = { 0 };
    void *packed;
    size_t n;

    (void)state;
    c->opts.tls = tls;
    other = c->opts;
    other.tls = wrong;
    open_node(c, 0);
    open_node_with(&c->nodes[1], &other);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 2);
    assert_non_null(strstr(c->nodes[1].text, "the token differs: compare TRAINERD_TOKEN"));
    assert_int_equal(rdzv_call(c->addresses[0], NULL, NULL, "Status", SOON_MS, &packed, &n, &err), ERR_AUTH);
    assert_non_null(strstr(err.text, "set the same TRAINERD_TOKEN for the caller"));
    assert_int_equal(rdzv_call(c->addresses[0], wrong, NULL, "Status", SOON_MS, &packed, &n, &err), ERR_AUTH);
    trainerd__v1__status_reply__free_unpacked(status(c->addresses[0], tls), NULL);
    close_cluster(c);
    tls_close(tls);
    tls_close(wrong);
}

static void task_with_a_token_is_rejected_by_a_task_in_clear_text(void **state)
{
    struct cluster *c = new_cluster(2);
    struct tls *tls = of_token(secret);
    struct rdzv_opts other;

    (void)state;
    open_node(c, 0);
    other = c->opts;
    other.tls = tls;
    open_node_with(&c->nodes[1], &other);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 2);
    assert_non_null(strstr(c->nodes[1].text, "the token differs: compare TRAINERD_TOKEN"));
    assert_non_null(strstr(c->nodes[1].text, "the other side does not use TLS"));
    close_cluster(c);
    tls_close(tls);
}

static void caller_with_tls_of_a_task_in_clear_text_is_told(void **state)
{
    struct cluster *c = open_cluster(1);
    struct tls *tls = of_token(secret);
    struct err err = { 0 };
    void *packed;
    size_t n;

    (void)state;
    assert_int_equal(rdzv_call(c->addresses[0], tls, NULL, "Status", SOON_MS, &packed, &n, &err), ERR_AUTH);
    assert_non_null(strstr(err.text, "does not use TLS"));
    close_cluster(c);
    tls_close(tls);
}

/* Certificates in files, of one authority. */
struct issued {
    char folder[64];
    struct buf authority, key;
};

static void write_pem(const char *folder, const char *name, const char *text)
{
    char path[128];
    struct err err;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (fs_replace(path, text, strlen(text), &err) < 0)
        fail_msg("%s", err.text);
}

static struct tls *issue(struct issued *to, const char *host)
{
    const struct tls_subject subject = { .name = "task", .hosts = &host, .n_hosts = 1, .days = 1 };
    struct buf certificate = { 0 }, key = { 0 };
    char paths[3][96];
    struct tls *t = NULL;
    struct err err;

    if (tls_certificate_new(to->authority.data, to->key.data, &subject, &certificate, &key, &err) < 0)
        fail_msg("%s", err.text);
    write_pem(to->folder, "tls.crt", certificate.data);
    write_pem(to->folder, "tls.key", key.data);
    write_pem(to->folder, "ca.crt", to->authority.data);
    buf_fini(&certificate);
    buf_fini(&key);
    snprintf(paths[0], sizeof(paths[0]), "%s/tls.crt", to->folder);
    snprintf(paths[1], sizeof(paths[1]), "%s/tls.key", to->folder);
    snprintf(paths[2], sizeof(paths[2]), "%s/ca.crt", to->folder);
    if (tls_open(&(struct tls_files){ paths[0], paths[1], paths[2] }, &t, &err) < 0)
        fail_msg("%s", err.text);
    return t;
}

static void begin_issuing(struct issued *to)
{
    struct err err;

    memset(to, 0, sizeof(*to));
    snprintf(to->folder, sizeof(to->folder), "/tmp/trainerd-control-XXXXXX");
    assert_non_null(mkdtemp(to->folder));
    if (tls_authority_new("test", 1, &to->authority, &to->key, &err) < 0)
        fail_msg("%s", err.text);
}

static void end_issuing(struct issued *to)
{
    assert_int_equal(fs_remove_tree(to->folder, NULL), 0);
    buf_fini(&to->authority);
    buf_fini(&to->key);
}

static void task_with_the_certificate_of_another_host_is_rejected(void **state)
{
    struct cluster *c = new_cluster(2);
    struct issued from;
    struct tls *good, *other;
    struct rdzv_opts stranger;

    (void)state;
    begin_issuing(&from);
    good = issue(&from, "127.0.0.1");
    other = issue(&from, "10.9.8.7");
    c->opts.tls = good;
    stranger = c->opts;
    stranger.tls = other;
    open_node(c, 0);
    open_node_with(&c->nodes[1], &stranger);
    WAIT_FOR(SOON_MS, c->nodes[1].code == 2);
    assert_non_null(strstr(c->nodes[1].text, "its certificate is of '10.9.8.7', expected the host of its address 127.0.0.1"));
    close_cluster(c);
    tls_close(good);
    tls_close(other);
    end_issuing(&from);
}

static void command_that_changes_the_job_needs_its_host_or_the_operator(void **state)
{
    struct cluster *c = new_cluster(1);
    struct issued from;
    struct tls *good, *viewer, *operator;
    struct err err = { 0 };
    void *packed;
    size_t n;

    (void)state;
    begin_issuing(&from);
    good = issue(&from, "127.0.0.1");
    viewer = issue(&from, "monitor.example");
    operator= issue(&from, RDZV_OPERATOR);
    c->opts.tls = good;
    open_node(c, 0);
    WAIT_FOR(SOON_MS, is_group(c, "0"));
    trainerd__v1__status_reply__free_unpacked(status(c->addresses[0], viewer), NULL);
    assert_int_equal(rdzv_call(c->addresses[0], viewer, NULL, "Stop", SOON_MS, &packed, &n, &err), ERR_AUTH);
    assert_non_null(strstr(err.text, "needs a certificate of a host of the cluster"));
    assert_int_equal(rdzv_call(c->addresses[0], operator, NULL, "Stop", SOON_MS, &packed, &n, &err), 0);
    free(packed);
    WAIT_FOR(SOON_MS, c->nodes[0].code == 143);
    close_cluster(c);
    tls_close(good);
    tls_close(viewer);
    tls_close(operator);
    end_issuing(&from);
}

static void command_that_changes_the_job_needs_the_token_if_there_is_one(void **state)
{
    struct cluster *c = new_cluster(1);
    struct issued from;
    struct tls *good;
    struct err err = { 0 };
    void *packed;
    size_t n;

    (void)state;
    begin_issuing(&from);
    good = issue(&from, "127.0.0.1");
    c->opts.tls = good;
    c->opts.token = secret;
    open_node(c, 0);
    WAIT_FOR(SOON_MS, is_group(c, "0"));
    assert_int_equal(rdzv_call(c->addresses[0], good, NULL, "Stop", SOON_MS, &packed, &n, &err), ERR_AUTH);
    assert_int_equal(rdzv_call(c->addresses[0], good, "another", "Stop", SOON_MS, &packed, &n, &err), ERR_AUTH);
    assert_non_null(strstr(err.text, "needs the token of the cluster"));
    assert_int_equal(rdzv_call(c->addresses[0], good, "two\nlines", "Stop", SOON_MS, &packed, &n, &err), ERR_INPUT);
    assert_int_equal(rdzv_call(c->addresses[0], good, secret, "Stop", SOON_MS, &packed, &n, &err), 0);
    free(packed);
    close_cluster(c);
    tls_close(good);
    end_issuing(&from);
}

/* client.py: Python's gRPC with the .proto files of this project; also joins as a third member. */
static void independent_grpc_client_all_services_answer(void **state)
{
    const char *directory_end = strrchr(__FILE__, '/');
    struct cluster *c = new_cluster(3);
    struct issued from;
    struct tls *good;
    char command[1024];

    (void)state;
    begin_issuing(&from);
    good = issue(&from, "127.0.0.1");
    c->opts.tls = good;
    open_node(c, 0);
    open_node(c, 1);
    WAIT_FOR(SOON_MS, is_group(c, "01"));
    for (uint32_t i = 0; i < 2; i++) {
        snprintf(command, sizeof(command),
                 "python3 '%.*s/client.py' %s '%s' '{\"type\": \"worker\", \"index\": 2, "
                 "\"version\": \"1.2\", \"job_digest\": \"j0b\", \"cluster_hash\": \"c1u\", "
                 "\"devices\": \"cpu\", \"n_devices\": 2, \"kernels\": \"onednn avx2\"}' >&2",
                 (int)(directory_end - __FILE__), __FILE__, c->addresses[i], from.folder);
        assert_int_equal(system(command), 0);
    }
    close_cluster(c);
    tls_close(good);
    end_issuing(&from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_reports_members_and_progress),
        cmocka_unit_test(status_of_a_waiting_task_reports_other_tasks_as_unknown),
        cmocka_unit_test(checkpoint_and_drain_are_answered_or_refused),
        cmocka_unit_test(stop_on_any_task_ends_the_job_everywhere),
        cmocka_unit_test(caller_or_task_without_the_token_is_rejected),
        cmocka_unit_test(task_with_a_token_is_rejected_by_a_task_in_clear_text),
        cmocka_unit_test(caller_with_tls_of_a_task_in_clear_text_is_told),
        cmocka_unit_test(task_with_the_certificate_of_another_host_is_rejected),
        cmocka_unit_test(command_that_changes_the_job_needs_its_host_or_the_operator),
        cmocka_unit_test(command_that_changes_the_job_needs_the_token_if_there_is_one),
        cmocka_unit_test(independent_grpc_client_all_services_answer),
    };

    return cmocka_run_group_tests_name("rdzv/control", tests, NULL, NULL);
}
