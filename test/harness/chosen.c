/* chosen.c - chooses tests of a cmocka program by name, for scripts/test.
 *
 * Every test program is linked with --wrap=_cmocka_run_group_tests, so that each call of cmocka_run_group_tests() comes
 * here. Three environment variables change what it runs:
 *   TEST_ONLY=TEXT      the tests with TEXT in their name
 *   TEST_EXCEPT=A,B     all tests but these
 *   TEST_LIST=1         no test; prints the name of each chosen test on a line of its own */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

int __wrap__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t n,
                                   CMFixtureFunction setup, CMFixtureFunction teardown);
int __real__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t n,
                                   CMFixtureFunction setup, CMFixtureFunction teardown);

/* Whether `name` is one of the names in `list`, which commas separate. */
static bool is_in(const char *list, const char *name)
{
    size_t length = strlen(name);

    for (const char *at = list; (at = strstr(at, name)) != NULL; at += length) {
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

static bool is_chosen(const char *name)
{
    const char *only = getenv("TEST_ONLY");
    const char *except = getenv("TEST_EXCEPT");

    return (only == NULL || strstr(name, only) != NULL) && (except == NULL || !is_in(except, name));
}

int __wrap__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t n,
                                   CMFixtureFunction setup, CMFixtureFunction teardown)
{
    struct CMUnitTest *chosen = calloc(n, sizeof(*chosen));
    size_t n_chosen = 0;
    int n_failed = 0;

    if (chosen == NULL)
        abort();
    for (size_t i = 0; i < n; i++) {
        if (tests[i].name != NULL && is_chosen(tests[i].name))
            chosen[n_chosen++] = tests[i];
    }
    if (getenv("TEST_LIST") != NULL) {
        for (size_t i = 0; i < n_chosen; i++)
            printf("%s\n", chosen[i].name);
    } else if (n_chosen > 0) {
        n_failed = __real__cmocka_run_group_tests(group, chosen, n_chosen, setup, teardown);
    }
    free(chosen);
    return n_failed;
}
