/* test_versions.c - the versions of each ONNX op that the importer accepts.
 *
 * onnx_history.h lists the versions of the standard; `reviewed` lists those whose text was compared
 * with the row that accepts them. A row that accepts a version with another meaning by accident, or
 * a new release of ONNX with a version that was not reviewed, fails here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "graph/graph_priv.h"

enum { VERSIONS_MAX = 12 /* of an op */ };

struct history {
    const char *name;
    struct {
        uint32_t since; /* 0: no further version */
        const char *attrs; /* "name=default " or "name ", each followed by a space */
    } version[VERSIONS_MAX];
};

#include "graph/onnx_history.h"

/* Versions from opset 7 on (or the version in force at opset 7) that a row accepts according to the
 * text. */
static const struct {
    const char *op, *versions;
} reviewed[] = {
#include "graph/reviewed_versions.h"
};

static const struct history *history_of(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(history); i++)
        if (strcmp(history[i].name, name) == 0)
            return &history[i];
    return NULL;
}

/* The index in h->version of the version in force; -1: none. */
static int in_force(const struct history *h, uint32_t opset)
{
    int at = -1;

    for (int k = 0; k < VERSIONS_MAX && h->version[k].since != 0; k++)
        if (h->version[k].since <= opset)
            at = k;
    return at;
}

static bool is_reviewed(const char *op, uint32_t version)
{
    char word[16];

    snprintf(word, sizeof(word), " %u ", version);
    for (size_t i = 0; i < COUNT_OF(reviewed); i++) {
        char list[200];

        snprintf(list, sizeof(list), " %s ", reviewed[i].versions);
        if (strcmp(reviewed[i].op, op) == 0)
            return strstr(list, word) != NULL;
    }
    return false;
}

static void opsets_of_importer_match_the_history(void **state)
{
    (void)state;
    assert_int_equal(GRAPH_OPSET_MAX, HISTORY_NEWEST);
}

static void accepted_version_is_reviewed(void **state)
{
    int failed = 0;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(history); i++)
        for (uint32_t opset = GRAPH_OPSET_MIN; opset <= GRAPH_OPSET_MAX; opset++) {
            const struct history *h = &history[i];
            int at = in_force(h, opset);
            uint32_t since = at >= 0 ? h->version[at].since : 0;
            bool expected = at >= 0 && is_reviewed(h->name, since);

            if ((graph_find_row(h->name, opset) != NULL) == expected)
                continue;
            print_error("%s of opset %u (version %u): %s, %s\n", h->name, opset, since,
                        expected ? "reviewed" : "not reviewed (test/graph/reviewed_versions.h)",
                        expected ? "but refused" : "but accepted");
            failed++;
        }
    assert_int_equal(failed, 0);
}

static void row_of_onnx_is_in_history(void **state)
{
    size_t n;
    const struct op_def *const *rows = op_all(&n);

    (void)state;
    for (size_t i = 0; i < n; i++)
        if (rows[i]->domain == NULL && history_of(rows[i]->name) == NULL)
            fail_msg("ONNX has no op %s", rows[i]->name);
}

/* Rows may begin and end only where the standard has a new version. */
static void version_has_one_row(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(history); i++)
        for (uint32_t opset = GRAPH_OPSET_MIN + 1; opset <= GRAPH_OPSET_MAX; opset++)
            if (in_force(&history[i], opset) == in_force(&history[i], opset - 1) &&
                graph_find_row(history[i].name, opset) !=
                    graph_find_row(history[i].name, opset - 1))
                fail_msg("%s: rows change at opset %u, where no version begins", history[i].name,
                         opset);
}

/* "name=default" of an attribute in a list; n: its length. NULL: absent, or without a default. */
static const char *default_of(const char *attrs, const char *name, size_t length, size_t *n)
{
    for (const char *a = attrs; *a != '\0'; a = strchr(a, ' ') + 1)
        if (strncmp(a, name, length) == 0 && a[length] == '=') {
            *n = strcspn(a, " ");
            return a;
        }
    return NULL;
}

/* A row has one default per attribute, so it cannot serve two versions with different defaults. */
static void versions_of_row_have_same_defaults(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(history); i++)
        for (uint32_t opset = GRAPH_OPSET_MIN + 1; opset <= GRAPH_OPSET_MAX; opset++) {
            const struct history *h = &history[i];
            int now = in_force(h, opset), before = in_force(h, opset - 1);

            if (now == before || now < 0 || before < 0 || graph_find_row(h->name, opset) == NULL ||
                graph_find_row(h->name, opset) != graph_find_row(h->name, opset - 1))
                continue;
            for (const char *a = h->version[now].attrs; *a != '\0'; a = strchr(a, ' ') + 1) {
                size_t length = strcspn(a, "= "), n = strcspn(a, " "), m;
                const char *old = default_of(h->version[before].attrs, a, length, &m);

                if (a[length] == '=' && old != NULL && (m != n || strncmp(a, old, n) != 0))
                    fail_msg("%s: one row for %.*s and %.*s", h->name, (int)m, old, (int)n, a);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opsets_of_importer_match_the_history),
        cmocka_unit_test(accepted_version_is_reviewed),
        cmocka_unit_test(row_of_onnx_is_in_history),
        cmocka_unit_test(version_has_one_row),
        cmocka_unit_test(versions_of_row_have_same_defaults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
