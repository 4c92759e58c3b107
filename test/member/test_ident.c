/* test_ident.c - which identities agree, and the message about a difference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "member/member_priv.h"

static void job_difference_names_the_keys_and_both_values(void **state)
{
    static const struct { const char *theirs, *ours, *text; } rows[] = {
        { "{\"a\":{\"b\":1,\"c\":\"x\"}}", "{\"a\":{\"b\":2,\"c\":\"x\"}}", "/a/b: it has 1, the coordinator has 2" },
        { "{\"a\":1}", "{}", "/a: it has 1, the coordinator has nothing" },
        { "{}", "{\"a\":[1]}", "/a: it has nothing, the coordinator has [1]" },
        { "{\"a\":{\"b\":1}}", "{\"a\":3}", "/a: it has {\"b\":1}, the coordinator has 3" },
        { "{\"b\":1,\"a\":0}", "{\"a\":1,\"c\":0,\"b\":2}",
          "/b: it has 1, the coordinator has 2; /a: it has 0, the coordinator has 1; /c: it has nothing, the coordinator "
          "has 0" },
        { "{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1}", "{}",
          "/a: it has 1, the coordinator has nothing; /b: it has 1, the coordinator has nothing; /c: it has 1, the "
          "coordinator has nothing; /d: it has 1, the coordinator has nothing; /e: it has 1, the coordinator has nothing; "
          "and 2 more keys" },
    };
    char out[600];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        assert_true(member_job_difference(rows[i].theirs, rows[i].ours, out, sizeof(out)));
        assert_string_equal(out, rows[i].text);
    }
}

static void job_difference_of_equal_or_unknown_jobs_is_none(void **state)
{
    char out[600];

    (void)state;
    assert_false(
        member_job_difference("{\"a\":1,\"b\":[2]}", "{\"b\":[2],\"a\":1}", out, sizeof(out)));
    assert_false(member_job_difference("", "{}", out, sizeof(out)));
    assert_false(member_job_difference(NULL, "{}", out, sizeof(out)));
    assert_false(member_job_difference("{", "{}", out, sizeof(out)));
}

static void job_difference_longer_than_its_buffer_is_cut(void **state)
{
    char text[400], out[64];

    (void)state;
    memset(text, 'x', sizeof(text));
    memcpy(text, "{\"", 2);
    memcpy(text + sizeof(text) - 5, "\":1}", 5);
    assert_true(member_job_difference(text, "{}", out, sizeof(out)));
    assert_int_equal(strlen(out), sizeof(out) - 1);
}

/* ---- versions ---- */

static bool agrees(const char *version, const char *protocol, const char *code, char out[600])
{
    struct member_ident ours = { .version = "0.1.3", .job_digest = "j", .cluster_hash = "c",
                                 .cluster = "{}", .devices = "cpu", .kernels = "k", .nccl = "",
                                 .protocol = "control 1", .code = "1234", .job = "" };
    struct member_ident theirs = ours;

    theirs.version = version;
    theirs.protocol = protocol;
    theirs.code = code;
    return member_ident_agrees(&theirs, 1, &ours, 1, out, 600);
}

static void versions_of_one_release_agree(void **state)
{
    static const struct {
        const char *version, *protocol, *code, *text; /* text NULL: they agree */
    } rows[] = {
        { "0.1.3", "control 1", "1234", NULL },
        { "0.1.4", "control 1", "1234", NULL },
        { "0.1.30", "control 1", "1234", NULL },
        { "0.1", "control 1", "1234", NULL },
        { "0.2.3", "control 1", "1234", "the version of trainerd differs: it has '0.2.3'" },
        { "0.10.3", "control 1", "1234", "the version of trainerd differs: it has '0.10.3'" },
        { "1.1.3", "control 1", "1234", "the version of trainerd differs: it has '1.1.3'" },
        { "0", "control 1", "1234", "the version of trainerd differs: it has '0'" },
        { "", "control 1", "1234", "the version of trainerd differs: it has ''" },
        { "0.1.4", "control 2", "1234", "the protocol differs: it has 'control 2'" },
        { "0.1.4", "control 1", "5678", "the code that computes differs: it has '5678'" },
        { "0.1.4", "control 1", "", "the code that computes differs: it has ''" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char out[600] = "";

        assert_int_equal(agrees(rows[i].version, rows[i].protocol, rows[i].code, out),
                         rows[i].text == NULL);
        if (rows[i].text != NULL && strstr(out, rows[i].text) == NULL)
            fail_msg("'%s' does not contain '%s'", out, rows[i].text);
    }
}

/* A parameter server has no devices of training: what depends on them is not compared. */
static void parameter_server_agrees_with_a_worker_of_other_devices(void **state)
{
    struct member_ident ours = { .version = "0.1.3", .job_digest = "j", .cluster_hash = "c",
                                 .cluster = "{}", .devices = "cuda", .kernels = "cudnn", .nccl = "2",
                                 .protocol = "control 1", .code = "1234", .job = "" };
    struct member_ident theirs = ours;
    char out[600];

    (void)state;
    theirs.devices = "cpu";
    theirs.kernels = "onednn";
    theirs.nccl = "";
    assert_true(member_ident_agrees(&theirs, 0, &ours, 4, out, sizeof(out)));
    assert_true(member_ident_agrees(&ours, 4, &theirs, 0, out, sizeof(out)));
    assert_false(member_ident_agrees(&theirs, 4, &ours, 4, out, sizeof(out)));
    theirs.job_digest = "other";
    assert_false(member_ident_agrees(&theirs, 0, &ours, 4, out, sizeof(out)));
    assert_non_null(strstr(out, "the digest of the job differs"));
    theirs = ours;
    theirs.code = "5678";
    assert_false(member_ident_agrees(&theirs, 0, &ours, 4, out, sizeof(out)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_difference_names_the_keys_and_both_values),
        cmocka_unit_test(job_difference_of_equal_or_unknown_jobs_is_none),
        cmocka_unit_test(job_difference_longer_than_its_buffer_is_cut),
        cmocka_unit_test(versions_of_one_release_agree),
        cmocka_unit_test(parameter_server_agrees_with_a_worker_of_other_devices),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
