/* test_cluster_task.c - tests which task this process is, in both profiles: validation, ranks and
 * chief, evaluators, and the forms that Kubeflow writes. The identifiers of the rows are the
 * numbers of the rules. */
#include "conf/cluster_kit.h"

#include "base/check.h"

static const struct cluster_row validating[] = {
    { .id = "U-1",
      CLUSTER("\"worker\":[\"a:1\"],\"tensorboard\":[\"t:1\"]", W(0)),
      "!TF_CONFIG:1:44: /cluster/tensorboard: job \"tensorboard\" is not allowed: jobs are chief, "
      "worker, ps and evaluator; rename it, or skip it with --ignore-jobs tensorboard" },
    { .id = "U-1 skipped",
      CLUSTER("\"worker\":[\"a:1\",\"b:2\"],\"tensorboard\":[\"\"],\"x\":7", W(1)),
      SECOND,
      .ignore = "x,tensorboard",
      .note = "job \"tensorboard\" is ignored" },
    { .id = "U-1 not skipped",
      CLUSTER("\"worker\":[\"a:1\",\"b:2\"],\"tensor\":[\"\"]", W(1)),
      "!job \"tensor\" is not allowed",
      .ignore = "tensorboard" },
    { .id = "U-2",
      "{" TWO "," T("boss", 0) "}",
      "!/task/type: task type must be chief, worker, ps or "
      "evaluator, found \"boss\"" },
    { .id = "U-2 case",
      "{" TWO "," T("Worker", 0) "}",
      "!found \"Worker\"; did you mean \"worker\"?" },
    { .id = "U-3",
      "{" TWO "," T("chief", 0) "}",
      "!/task/index: this task is chief 0, but the cluster "
      "lists no chief" },
    { .id = "U-4",
      CLUSTER("\"chief\":[\"a:1\",\"b:1\"]", T("chief", 0)),
      "!TF_CONFIG:1:21: /cluster/chief: there are 2 chief tasks; expected at most 1" },
    { .id = "U-5",
      CLUSTER("\"worker\":[\"a:1\"],\"evaluator\":[\"b:1\",\"c:1\"]", W(0)),
      "!/cluster/evaluator: there are 2 evaluator tasks; expected at most 1" },
    { .id = "U-6",
      CLUSTER("\"worker\":[\"a:1\"],\"ps\":{\"1\":\"b:1\",\"5\":\"c:1\"}", T("ps", 3)),
      "!/task/index: task index 3 (from task.index) is not listed: the cluster lists 2 ps tasks, "
      "with gaps in the indices from 1 to 5" },
    { .id = "U-6 by set",
      CLUSTER("\"worker\":[\"a:1\"],\"ps\":{\"1\":\"b:1\",\"5\":\"c:1\"}", T("ps", 5)),
      "ps 5 rank - of 1" },
    { .id = "U-7",
      "{" TWO "," W(-1) "}",
      "!/task/index: task index is negative, found the number -1",
      "!/task/index: task index must be 0 to 2147483647, found the number -1" },
    { .id = "U-7 huge",
      "{" TWO "," W(99999999999999999999999) "}",
      "!/task/index: task index must be a plain",
      "!/task/index: task index must be 0 to 21474836" },
    { .id = "U-8",
      CLUSTER("\"worker\":{\"1\":\"b:2\"}", W(1)),
      "!TF_CONFIG:1:27: /cluster/worker/1: the "
      "worker indices have a gap: worker 0 is missing; a sparse worker list needs the dynamic "
      "form" },
    { .id = "U-9",
      CLUSTER("\"worker\":{\"0\":\"b:2\",\"2\":\"c:3\"}", W(2)),
      "!/cluster/worker/2: the worker indices have a gap: worker 1 is missing; a sparse worker "
      "list "
      "needs the dynamic form" },
    { .id = "U-9 other",
      CLUSTER("\"worker\":{\"0\":\"b:2\",\"2\":\"c:3\"},\"ps\":[]", W(0)),
      "!the worker indices have a gap" },
    { .id = "chief index",
      CLUSTER("\"chief\":{\"3\":\"b:2\"},\"worker\":[\"a:1\"]", W(0)),
      "!/cluster/chief/3: the chief indices have a gap: chief 0 is missing",
      "worker 0 rank 1 of 2" },
};

#define WITH_CHIEF "\"chief\":[\"c:1\"],\"worker\":[\"a:1\",\"b:1\"]"
static const struct cluster_row ranking[] = {
    { .id = "C-1", CLUSTER(WITH_CHIEF, T("chief", 0)), "chief 0 rank 0 of 3 chief" },
    { .id = "C-2", CLUSTER(WITH_CHIEF, W(0)), "worker 0 rank 1 of 3" },
    { .id = "C-3", "{" TWO "," W(0) "}", FIRST },
    { .id = "C-4", "{" TWO "," W(1) "}", SECOND },
    { .id = "C-5", CLUSTER(WITH_CHIEF, W(1)), "worker 1 rank 2 of 3" },
    { .id = "C-6", CLUSTER(WITH_CHIEF ",\"evaluator\":[\"e:1\"]", W(1)), "worker 1 rank 2 of 3" },
    { .id = "C-7",
      CLUSTER(WITH_CHIEF ",\"evaluator\":[\"e:1\"]", T("evaluator", 0)),
      "evaluator 0 rank - of 3" },
    { .id = "C-8",
      CLUSTER(WITH_CHIEF ",\"ps\":[\"p:1\",\"q:1\"]", T("ps", 1)),
      "ps 1 rank - of 3" },
    { .id = "C-9",
      CLUSTER(WITH_CHIEF ",\"ps\":[\"p:1\",\"q:1\"]", W(0)),
      "worker 0 rank 1 of 3",
      .note = "the 2 ps tasks are not used" },
    { .id = "C-10", CLUSTER("\"chief\":[\"c:1\"]", T("chief", 0)), "chief 0 rank 0 of 1 chief" },
    { .id = "C-11",
      CLUSTER("\"chief\":[],\"worker\":[\"a:1\",\"b:2\"]", W(0)),
      FIRST,
      "worker 0 rank 0 of 2",
      .note = "the job \"chief\" is empty and is treated as absent" },
    { .id = "C-11 self",
      CLUSTER("\"chief\":[],\"worker\":[\"a:1\",\"b:2\"]", T("chief", 0)),
      "!this task is chief 0, but the cluster lists no chief" },
    { .id = "C-12", "{" TWO ",\"task\":{}}", "!the cluster does not define which task" },
    { .id = "C-13",
      CLUSTER("\"worker\":[]", W(0)),
      "!/cluster/worker: the job \"worker\" is empty" },
    { .id = "C-14",
      CLUSTER("\"ps\":[\"p:1\"]", T("ps", 0)),
      "!TF_CONFIG: the cluster has neither a chief "
      "nor a worker" },
    { .id = "C-14 evaluator",
      CLUSTER("\"evaluator\":[\"e:1\"]", T("evaluator", 0)),
      "!the cluster has neither a chief nor a worker" },
    { .id = "C-14 ignored",
      CLUSTER("\"x\":[\"e:1\"]", W(0)),
      "!the cluster has neither a chief nor a "
      "worker",
      .ignore = "x" },
    { .id = "M-1", "{\"environment\":\"cloud\"}", LOCAL },
    { .id = "M-2",
      "{" W(5) "}",
      "!TF_CONFIG:1:9: /task: task worker 5 is named, but there is no cluster",
      LOCAL },
    { .id = "M-2 chief",
      "{" T("chief", 0) "}",
      "!/task: task chief 0 is named, but there is no cluster",
      LOCAL },
    { .id = "M-2 empty cluster",
      "{\"cluster\":{}," W(5) "}",
      "!/task: task worker 5 is named",
      LOCAL },
    { .id = "M-2 flag",
      NULL,
      "!TF_CONFIG: task worker 1 is named, but there is no cluster",
      LOCAL,
      .task = "worker:1" },
    { .id = "E-8", "{" W(0) "}", LOCAL },
    { .id = "M-3", "{\"cluster\":{}}", LOCAL },
    { .id = "M-4", ALONE_AT("a:1"), "worker 0 rank 0 of 1 chief" },
    { .id = "M-5", "{\"rpc_layer\":\"grpc\"," TWO "," W(0) "}", FIRST },
    { .id = "M-5 other",
      "{\"rpc_layer\":\"grpc+verbs\"," TWO "," W(0) "}",
      "!TF_CONFIG:1:14: /rpc_layer: "
      "rpc_layer must be \"grpc\", found the string \"grpc+verbs\"; write \"grpc\" or leave it "
      "out" },
    { .id = "M-5 null",
      "{\"rpc_layer\":null," TWO "," W(0) "}",
      "!/rpc_layer: rpc_layer must be",
      FIRST },
    { .id = "E-3",
      CLUSTER("\"master\":[\"c:1\"],\"worker\":[\"a:1\",\"b:1\"]", T("master", 0)),
      "chief 0 rank 0 of 3 chief",
      .note = "\"master\" is an old name of \"chief\"" },
    { .id = "E-4",
      CLUSTER("\"master\":[\"c:1\"],\"chief\":[\"a:1\"]", T("chief", 0)),
      "!TF_CONFIG:1:38: /cluster/chief: both \"master\" and \"chief\" are listed" },
};

static const struct cluster_row evaluators[] = {
    { .id = "EV-1", CLUSTER("\"worker\":[\"a:1\",\"b:2\"],\"evaluator\":[\"e:1\"]", W(1)), SECOND },
    { .id = "EV-2",
      CLUSTER("\"worker\":[\"a:1\",\"b:2\"],\"evaluator\":[\"e:1\"]", T("evaluator", 0)),
      "evaluator 0 rank - of 2" },
    { .id = "EV-3", "{" TWO "," T("evaluator", 0) "}", "evaluator 0 rank - of 2" },
    { .id = "EV-4", "{" TWO "," T("evaluator", 12) "}", "evaluator 12 rank - of 2" },
    { .id = "EV-5", "{" TWO "," T("evaluator", -1) "}", "!/task/index: task index " },
    { .id = "EV listed otherwise",
      CLUSTER("\"worker\":[\"a:1\"],\"evaluator\":[\"e:1\"]", T("evaluator", 1)),
      "!/task/index: task index 1 (from task.index) is out of range: the cluster lists 1" },
};

static const struct cluster_row kubeflow[] = {
    { .id = "KF-1",
      "{\"cluster\":{\"ps\":[\"J-ps-0.N.svc:2222\"],\"worker\":[\"J-worker-0.N.svc:2222\"]},"
      "\"task\":{\"type\":\"worker\",\"index\":0},\"environment\":\"cloud\"}",
      "worker 0 rank 0 of 1 chief",
      .note = "the 1 ps tasks are not used" },
    { .id = "KF-2", AT("J-worker-0.N.svc.cluster.local:2222"), FIRST },
    { .id = "KF-3", NULL, LOCAL },
    { .id = "KF-4",
      CLUSTER("\"chief\":[\"a:1\"],\"worker\":[\"b:1\"]", W(0)),
      "worker 0 rank 1 of 2" },
    { .id = "KF-8",
      CLUSTER("\"worker\":{\"3\":\"w3:1\"},\"ps\":[\"p:1\",\"q:1\"]", W(3)),
      "worker 3 rank 0 of 1 dynamic",
      .note = "the 2 ps tasks are not used" },
    { .id = "KF-8 first",
      CLUSTER("\"worker\":{\"0\":\"w0:1\"},\"ps\":[]", W(0)),
      "worker 0 rank 0 of 1 chief dynamic" },
    { .id = "KF-8 not me",
      CLUSTER("\"worker\":{\"3\":\"w3:1\"},\"ps\":[\"p:1\"]", W(2)),
      "!/cluster/worker/3: the worker indices have a gap" },
    { .id = "KF-8 with a chief",
      CLUSTER("\"worker\":{\"3\":\"w3:1\"},\"ps\":[],\"chief\":[\"c:1\"]", W(3)),
      "!/cluster/worker/3: the worker indices have a gap" },
    { .id = "KF-9",
      CLUSTER("\"ps\":[\"p2:1\"],\"worker\":{}", T("ps", 2)),
      "ps 2 rank - of 0 dynamic" },
    { .id = "KF-9 first",
      CLUSTER("\"ps\":[\"p0:1\"],\"worker\":{}", T("ps", 0)),
      "ps 0 rank - of 0 dynamic" },
    { .id = "KF-9 contradicted",
      CLUSTER("\"ps\":[\"p2:1\"],\"worker\":[\"w:1\"]", T("ps", 2)),
      "!/task/index: task index 2 (from task.index) is out of range: the cluster lists 1" },
    { .id = "KF-9 two",
      CLUSTER("\"ps\":[\"p1:1\",\"p2:1\"],\"worker\":{}", T("ps", 2)),
      "!/cluster/worker: the job \"worker\" is empty" },
    { .id = "KF-10 chief",
      CLUSTER("\"ps\":[],\"worker\":{}", T("chief", 0)),
      "!/cluster/worker: the job \"worker\" is empty" },
    { .id = "KF-10 evaluator",
      CLUSTER("\"ps\":[],\"worker\":{}", T("evaluator", 0)),
      "!/cluster/worker: the job \"worker\" is empty" },
};

static void task_is_validated_by_the_rules(void **state)
{
    (void)state;
    kit_check_rows(validating, COUNT_OF(validating));
}

static void ranks_world_and_chief_are_set_by_the_rules(void **state)
{
    (void)state;
    kit_check_rows(ranking, COUNT_OF(ranking));
}

static void evaluator_in_every_form_is_accepted_and_not_counted(void **state)
{
    (void)state;
    kit_check_rows(evaluators, COUNT_OF(evaluators));
}

static void kubeflow_in_every_form_is_accepted(void **state)
{
    (void)state;
    kit_check_rows(kubeflow, COUNT_OF(kubeflow));
}

static struct cluster *resolved(const char *text)
{
    const struct cluster_row row = { .id = "ps", .text = text };
    struct cluster *c = NULL;
    struct err err = { 0 };

    if (kit_resolve(&row, CLUSTER_STRICT, &c, &err) != 0)
        fail_msg("%s", err.text);
    return c;
}

static void used_ps_tasks_have_the_ranks_after_the_workers(void **state)
{
    static const char text[] =
        CLUSTER("\"ps\":{\"5\":\"q:1\",\"1\":\"p:1\"}," WITH_CHIEF, T("ps", 5));
    static const char worker[] =
        CLUSTER("\"ps\":[\"p:1\"],\"worker\":[\"a:1\"],\"evaluator\":[\"e:1\"]", W(0));
    struct cluster *c = resolved(text);
    struct err err;
    char name[32];

    (void)state;
    assert_int_equal(c->group, c->world);
    assert_int_equal(c->n_ps, 2);
    assert_int_equal(c->self->rank, CLUSTER_NO_RANK);
    assert_int_equal(cluster_use_ps(c, &err), 0);
    assert_int_equal(c->world, 3);
    assert_int_equal(c->group, 5);
    for (uint32_t r = 0; r < c->group; r++)
        assert_int_equal(c->ranks[r]->rank, r);
    assert_string_equal(cluster_task_name(c->ranks[3], name, sizeof(name)), "ps 1");
    assert_string_equal(cluster_task_name(c->ranks[4], name, sizeof(name)), "ps 5");
    assert_int_equal(c->self->rank, 4);
    assert_false(c->is_chief);
    cluster_free(c);
    c = resolved(worker);
    assert_int_equal(c->n_notes, 1);
    assert_int_equal(cluster_use_ps(c, &err), 0);
    assert_int_equal(c->n_notes, 0);
    assert_int_equal(c->world, 1);
    assert_int_equal(c->group, 2);
    assert_true(c->is_chief);
    cluster_free(c);
}

static void ps_tasks_of_an_incomplete_cluster_cannot_be_used(void **state)
{
    static const struct {
        const char *text, *expected;
    } rows[] = {
        { CLUSTER(WITH_CHIEF, W(0)), "TF_CONFIG: the job has /parameter_server, but the cluster lists no ps task; add" },
        { CLUSTER(WITH_CHIEF ",\"ps\":[]", W(0)), "the cluster lists no ps task" },
        { CLUSTER("\"worker\":{\"3\":\"w3:1\"},\"ps\":[\"p:1\"]", W(3)), "lists only the ps tasks and this task" },
        { CLUSTER("\"ps\":[\"p2:1\"],\"worker\":{}", T("ps", 2)), "lists only the ps tasks and this task" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct cluster *c = resolved(rows[i].text);
        struct err err;

        assert_int_equal(cluster_use_ps(c, &err), ERR_INPUT);
        if (strstr(err.text, rows[i].expected) == NULL)
            fail_msg("'%s' does not contain '%s'", err.text, rows[i].expected);
        cluster_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(task_is_validated_by_the_rules),
        cmocka_unit_test(ranks_world_and_chief_are_set_by_the_rules),
        cmocka_unit_test(evaluator_in_every_form_is_accepted_and_not_counted),
        cmocka_unit_test(kubeflow_in_every_form_is_accepted),
        cmocka_unit_test(used_ps_tasks_have_the_ranks_after_the_workers),
        cmocka_unit_test(ps_tasks_of_an_incomplete_cluster_cannot_be_used),
    };

    return cmocka_run_group_tests_name("conf/cluster_task", tests, NULL, NULL);
}
