/* test_cluster_table.c - tests the finished table: canonical form and hash, addresses, JSON
 * output. */
#include "conf/cluster_kit.h"

#include <stdlib.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/fault.h"
#include "base/json.h"
#include "conf/cluster_print.h"

#define W0 "\"task\":{\"type\":\"worker\",\"index\":0}"
#define E3 "\"task\":{\"type\":\"evaluator\",\"index\":3}"
#define W1 "\"task\":{\"type\":\"worker\",\"index\":1}"

static struct cluster *resolve(const char *text)
{
    const struct cluster_row row = { .id = "", text, "" };
    struct cluster *c = NULL;
    struct err err = { 0 };

    if (kit_resolve(&row, CLUSTER_STRICT, &c, &err) < 0)
        fail_msg("%s: %s", text, err.text);
    return c;
}

static void canonical_form_of_equal_clusters_is_equal(void **state)
{
    /* The texts differ in what does not matter: order of the jobs, list or object, trailing dot of
     * a host, an evaluator, an empty ps job, white space, "master", and the task that reads the
     * text. */
    static const char *const same[] = {
        "{\"cluster\":{\"chief\":[\"c.x:3\"],\"worker\":[\"a:1\",\"b:2\"]}," W0 "}",
        "{\"cluster\":{\"worker\":[\"a:1\",\"b:2\"],\"chief\":[\"c.x:3\"]}," W1 "}",
        "{\"cluster\":{\"worker\":{\"1\":\"b:2\",\"0\":\"a:1\"},\"chief\":{\"0\":\"c.x:3\"}}," W0
        "}",
        "{ \"cluster\": {\"chief\":[\"c.x.:3\"],\"worker\":[\"a:1\",\"b:2\"]}, " W0 " }",
        "{\"cluster\":{\"master\":[\"c.x:3\"],\"worker\":[\"a:1\",\"b:2\"]}," W0 "}",
        "{\"cluster\":{\"chief\":[\"c.x:3\"],\"worker\":[\"a:1\",\"b:2\"],\"ps\":[],"
        "\"evaluator\":[\"e:1\"]}," W0 "}",
        "{\"cluster\":{\"chief\":[\"c.x:3\"],\"worker\":[\"a:1\",\"b:2\"]}," E3 "}",
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(same); i++) {
        struct cluster *c = resolve(same[i]);

        assert_string_equal(
            c->canonical, "{\"chief\":{\"0\":\"c.x:3\"},\"worker\":{\"0\":\"a:1\",\"1\":\"b:2\"}}");
        /* SHA-256 of the line above, by sha256sum. */
        assert_string_equal(c->hash,
                            "adedaff83f98821c8605c305fb68c1bef6d5d626982d5c16310f86b75f484100");
        cluster_free(c);
    }
}

static void hash_of_different_clusters_differs(void **state)
{
    static const char *const others[] = {
        "{}",
        "{\"cluster\":{\"worker\":[\"a:1\",\"b:2\"]}," W0 "}",
        "{\"cluster\":{\"worker\":[\"b:2\",\"a:1\"]}," W0 "}",
        "{\"cluster\":{\"worker\":[\"a:1\",\"b:3\"]}," W0 "}",
        "{\"cluster\":{\"worker\":[\"a:1\",\"b:2\"],\"ps\":[\"p:1\"]}," W0 "}",
        "{\"cluster\":{\"worker\":[\"a:1\"],\"ps\":[\"b:2\"]}," W0 "}",
        "{\"cluster\":{\"worker\":[\"a:1\"],\"chief\":[\"b:2\"]}," W0 "}",
    };
    char hashes[COUNT_OF(others)][65];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        struct cluster *c = resolve(others[i]);

        memcpy(hashes[i], c->hash, sizeof(hashes[i]));
        cluster_free(c);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(hashes[k], hashes[i]);
    }
}

static void table_is_sorted_and_has_ranks(void **state)
{
    struct cluster *c = resolve("{\"cluster\":{\"worker\":[\"a.:1\",\"[::1]:2\"],\"ps\":[\"p:5\"],"
                                "\"evaluator\":[\"e:4\"],\"chief\":[\"c:3\"]}," W1 "}");
    char description[256] = "";

    (void)state;
    for (uint32_t i = 0; i < c->n_tasks; i++) {
        const struct cluster_task *t = &c->tasks[i];
        char name[32];

        snprintf(description + strlen(description), sizeof(description) - strlen(description),
                 "%s %s at %s|%u rank %d\n", cluster_task_name(t, name, sizeof(name)), t->address,
                 t->host, (unsigned)t->port, (int)t->rank);
    }
    assert_string_equal(description, "chief 0 c:3 at c|3 rank 0\n"
                               "evaluator 0 e:4 at e|4 rank -1\n"
                               "ps 0 p:5 at p|5 rank -1\n"
                               "worker 0 a.:1 at a|1 rank 1\n"
                               "worker 1 [::1]:2 at ::1|2 rank 2\n");
    assert_ptr_equal(c->ranks[2], c->self);
    assert_string_equal(c->source, "TF_CONFIG");
    assert_string_equal(c->index_source, "task.index");
    cluster_free(c);
}

static void local_cluster_has_one_task_without_address(void **state)
{
    struct cluster *c = resolve(NULL);

    (void)state;
    assert_int_equal(c->n_tasks, 1);
    assert_null(c->self->address);
    assert_ptr_equal(c->ranks[0], c->self);
    assert_string_equal(c->canonical, "{}");
    assert_string_equal(c->source, "none");
    assert_string_equal(c->index_source, "none");
    cluster_free(c);
}

static void cluster_of_1000_tasks_is_resolved(void **state)
{
    struct buf text = { 0 };
    struct cluster *c;

    (void)state;
    buf_str(&text, "{\"cluster\":{\"worker\":[");
    for (int i = 0; i < 1000; i++)
        buf_printf(&text, "%s\"host-%d:2222\"", i > 0 ? "," : "", i);
    buf_str(&text, "]},\"task\":{\"type\":\"worker\",\"index\":999}}");
    c = resolve(text.data);
    assert_int_equal(c->world, 1000);
    assert_int_equal(c->self->rank, 999);
    assert_string_equal(c->ranks[10]->host, "host-10");
    cluster_free(c);
    buf_fini(&text);
}

static void print_is_json_with_all_fields(void **state)
{
    struct cluster *c = resolve("{\"cluster\":{\"chief\":[\"c:3\"],\"ps\":[\"p:4\"]},"
                                "\"task\":{\"type\":\"chief\",\"index\":0}}");
    struct buf out = { 0 };
    struct json *doc;
    char expected[1024];

    (void)state;
    cluster_print(c, &out);
    snprintf(expected, sizeof(expected),
             "{\"source\":\"TF_CONFIG\",\"local\":false,\"dynamic\":false,\"world\":1,"
             "\"chief\":true,\"task\":{\"type\":\"chief\",\"index\":0,\"rank\":0,"
             "\"address\":\"c:3\"},\"index_source\":\"task.index\",\"tasks\":["
             "{\"type\":\"chief\",\"index\":0,\"rank\":0,\"address\":\"c:3\"},"
             "{\"type\":\"ps\",\"index\":0,\"rank\":null,\"address\":\"p:4\"}],"
             "\"canonical\":{\"chief\":{\"0\":\"c:3\"},\"ps\":{\"0\":\"p:4\"}},\"hash\":\"%s\","
             "\"notes\":[\"%s\"]}",
             c->hash, c->notes[0]);
    assert_string_equal(out.data, expected);
    assert_int_equal(json_parse("print", out.data, out.len, 0, &doc, NULL), 0);
    json_free(doc);
    buf_fini(&out);
    cluster_free(c);
}

/* Injects a fault at the 1st, 2nd, ... allocation or system call, until there are no more. */
static void resolve_out_of_memory_is_refused_without_leaks(void **state)
{
    static const struct cluster_row rows[] = {
        { .id = "listed",
          "{\"cluster\":{\"master\":[\"c:3\"],\"worker\":[\"a:1\",\"b:2\"],"
          "\"ps\":[\"p:4\"],\"evaluator\":{\"1\":\"e:5\"}}}",
          "",
          .env = { "PMI_RANK=1" } },
        { .id = "flag", "{\"cluster\":{\"worker\":[\"a:1\",\"b:2\"]}}", "", .task = "evaluator:7" },
        { .id = "local", NULL, "" },
        { .id = "slurm",
          NULL,
          "",
          .file = "slurm",
          .env = { "SLURM_STEP_NODELIST=n[1-20]", "SLURM_STEP_TASKS_PER_NODE=2(x20)",
                   "SLURM_PROCID=0" } },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        uint32_t n = 1;

        for (bool fired = true; fired; n++) {
            struct cluster *c = NULL;
            struct err err = { 0 };
            char spec[32];
            int rc;

            snprintf(spec, sizeof(spec), "*@%u", (unsigned)n);
            assert_int_equal(fault_arm(spec, NULL), 0);
            rc = kit_resolve(&rows[i], CLUSTER_STRICT, &c, &err);
            fired = fault_fired();
            assert_int_equal(fault_arm(NULL, NULL), 0);
            if (rc != (fired ? ERR_NOMEM : 0))
                fail_msg("%s, failing allocation %u: %d %s", rows[i].id, (unsigned)n, rc, err.text);
            cluster_free(c);
        }
        assert_true(n > 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(canonical_form_of_equal_clusters_is_equal),
        cmocka_unit_test(hash_of_different_clusters_differs),
        cmocka_unit_test(table_is_sorted_and_has_ranks),
        cmocka_unit_test(local_cluster_has_one_task_without_address),
        cmocka_unit_test(cluster_of_1000_tasks_is_resolved),
        cmocka_unit_test(print_is_json_with_all_fields),
        cmocka_unit_test(resolve_out_of_memory_is_refused_without_leaks),
    };

    return cmocka_run_group_tests_name("conf/cluster_table", tests, NULL, NULL);
}
