/* test_cluster_oracle.c - compares the tf profile, on random texts, with oracle_cluster.py, an
 * independent model of what TensorFlow accepts and computes. */
#include "conf/cluster_kit.h"

#include <stdlib.h>

enum { CASES = 6000, LINE_BYTES = 1 << 16 };

/* Reads a line into `line`, without its end. Returns false at the end of the stream. */
static bool read_line(FILE *in, char *line)
{
    if (fgets(line, LINE_BYTES, in) == NULL)
        return false;
    assert_non_null(strchr(line, '\n'));
    *strchr(line, '\n') = '\0';
    return true;
}

/* Writes "refused", or the description of the cluster without " dynamic", which TensorFlow does not
 * have. */
static void outcome_of(const char *text, char *out, size_t n, struct err *err)
{
    const struct cluster_row row = { .id = "", text, "" };
    struct cluster *c = NULL;

    if (kit_resolve(&row, CLUSTER_TF, &c, err) < 0) {
        snprintf(out, n, "refused");
        return;
    }
    kit_check_table(c);
    c->is_dynamic = false;
    kit_describe(c, out, n);
    cluster_free(c);
}

static void tf_profile_has_the_outcomes_of_the_independent_model(void **state)
{
    const char *directory_end = strrchr(__FILE__, '/');
    char command[512], outcome[128];
    char *expected = malloc(LINE_BYTES), *text = malloc(LINE_BYTES);
    int n = 0, n_accepted = 0;
    FILE *in;

    (void)state;
    assert_non_null(directory_end);
    snprintf(command, sizeof(command), "python3 '%.*s/oracle_cluster.py' %d %s",
             (int)(directory_end - __FILE__), __FILE__, CASES,
             getenv("TEST_SEED") != NULL ? getenv("TEST_SEED") : "1");
    in = popen(command, "r");
    assert_non_null(in);
    while (read_line(in, expected)) {
        struct err err = { 0 };

        assert_true(read_line(in, text));
        outcome_of(text, outcome, sizeof(outcome), &err);
        if (strcmp(outcome, expected) != 0)
            fail_msg("%s: expected '%s', found '%s' %s", text, expected, outcome, err.text);
        n++;
        n_accepted += strcmp(outcome, "refused") != 0;
    }
    assert_int_equal(pclose(in), 0);
    assert_int_equal(n, CASES);
    assert_true(n_accepted > CASES / 5 && n_accepted < CASES - CASES / 5);
    free(expected);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tf_profile_has_the_outcomes_of_the_independent_model),
    };

    return cmocka_run_group_tests_name("conf/cluster_oracle", tests, NULL, NULL);
}
