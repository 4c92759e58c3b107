#include "daemon/args.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/text.h"

enum { ARGS_MAX = 64 };

static int parse_switch(const struct arg *a, const char *value, const char *from, struct err *err)
{
    static const struct { const char *word; bool on; } words[] = {
        { "1", true }, { "true", true }, { "yes", true }, { "0", false }, { "false", false },
        { "no", false }, { "", false },
    };

    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (strcasecmp(value, words[i].word) == 0) {
            *a->flag = words[i].on;
            return 0;
        }
    return err_set(err, ERR_INPUT, "%s: expected true or false, found '%.80s'", from, value);
}

/* Whether kubelet made the variable: for a Service called `trainerd` every pod of the namespace gets
 * TRAINERD_PORT=tcp://10.96.0.12:2222 beside TRAINERD_SERVICE_HOST and others. */
static bool is_service_link(const char *name, const char *value)
{
    static const char end[] = "_PORT";
    static const char *const protocols[] = { "tcp://", "udp://", "sctp://" };
    size_t len = strlen(name), n = sizeof(end) - 1;

    for (size_t i = 0; i < COUNT_OF(protocols) && len > n; i++)
        if (strcmp(name + len - n, end) == 0 && text_starts(value, protocols[i]))
            return true;
    return false;
}

/* Whether the name may be that of a variable which kubelet makes for a Service: NAME_SERVICE_HOST, NAME_SERVICE_PORT,
 * NAME_PORT, NAME_PORT_2222_TCP, and longer ones. */
static bool may_be_service(const char *name)
{
    const char *port = strstr(name, "_PORT");

    return strstr(name, "_SERVICE_HOST") != NULL || strstr(name, "_SERVICE_PORT") != NULL ||
           (port != NULL &&
            (port[5] == '\0' || (port[5] == '_' && port[6] >= '0' && port[6] <= '9')));
}

/* Variables of the scripts trainerd-* and of the tests begin so. */
static bool is_of_script(const char *name)
{
    static const char *const starts[] = { "TRAINERD_KEEP_", "TRAINERD_MPIRUN_", "TRAINERD_SRUN_", "TRAINERD_TEST_" };

    for (size_t i = 0; i < COUNT_OF(starts); i++)
        if (text_starts(name, starts[i]))
            return true;
    return false;
}

bool args_next_unread(const struct arg *table, size_t n, const char *const *others, size_t n_others,
                      size_t *at, char out[ARGS_UNREAD_BYTES])
{
    static const char start[] = "TRAINERD_";
    const char *known[2 * ARGS_MAX], *near; /* names without their start, which would make all alike */
    size_t n_known = 0, skipped = sizeof(start) - 1;

    CHECK(n <= ARGS_MAX && n_others <= ARGS_MAX);
    for (size_t i = 0; i < n; i++)
        if (table[i].env != NULL)
            known[n_known++] = table[i].env + skipped;
    for (size_t i = 0; i < n_others; i++)
        known[n_known++] = others[i] + skipped;
    while (environ[*at] != NULL) {
        char name[128];
        size_t i = 0;

        snprintf(name, sizeof(name), "%.*s", (int)strcspn(environ[*at], "="), environ[*at]);
        (*at)++;
        if (!text_starts(name, start) || is_of_script(name) || may_be_service(name))
            continue;
        while (i < n_known && strcmp(known[i], name + skipped) != 0)
            i++;
        if (i < n_known)
            continue;
        near = text_nearest(name + skipped, known, n_known);
        snprintf(
            out, ARGS_UNREAD_BYTES,
            "the environment variable %s is not read%s%s%s trainerd --help lists the variables",
            name, near != NULL ? ": did you mean TRAINERD_" : ";", near != NULL ? near : "",
            near != NULL ? "?" : "");
        return true;
    }
    return false;
}

/* Whether the value is a path, which the help calls FILE, DIR or PREFIX. */
static bool takes_path(const struct arg *a)
{
    static const char *const words[] = { "FILE", "DIR", "PREFIX" };

    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (strcmp(a->value, words[i]) == 0)
            return true;
    return false;
}

/* `from`: the flag or the variable, for messages. */
static int set_text(const struct arg *a, const char *value, const char *from, struct err *err)
{
    int rc = takes_path(a) ? fs_check_path(value, err) : 0;

    if (rc < 0)
        return err_wrap(err, rc, "%s", from);
    *a->text = value;
    return 0;
}

static int parse_environment(const struct arg *table, size_t n, struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *value = table[i].env != NULL ? getenv(table[i].env) : NULL;
        int rc = 0;

        if (value == NULL || is_service_link(table[i].env, value))
            continue;
        if (table[i].flag != NULL)
            rc = parse_switch(&table[i], value, table[i].env, err);
        else if (value[0] != '\0') /* an unset value is often "" in Kubernetes and systemd */
            rc = set_text(&table[i], value, table[i].env, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int unknown(const struct arg *table, size_t n, const char *word, size_t len, struct err *err)
{
    const char *names[ARGS_MAX];
    char given[80];
    const char *near;

    snprintf(given, sizeof(given), "%.*s", (int)(len < 70 ? len : 70), word);
    for (size_t i = 0; i < n; i++)
        names[i] = table[i].name;
    near = text_nearest(given, names, n);
    if (near != NULL)
        return err_set(err, ERR_INPUT, "unknown flag --%s; did you mean --%s?", given, near);
    return err_set(err, ERR_INPUT, "unknown flag --%s; --help lists the flags", given);
}

static int parse_flag(const struct arg *table, size_t n, int argc, char **argv, int *i,
                      struct err *err)
{
    const char *word = argv[*i] + 2;
    const char *equals = strchr(word, '=');
    size_t len = equals != NULL ? (size_t)(equals - word) : strlen(word);
    char from[64];

    for (size_t k = 0; k < n; k++) {
        const struct arg *a = &table[k];

        if (strlen(a->name) != len || strncmp(a->name, word, len) != 0)
            continue;
        if (a->flag != NULL) {
            *a->flag = true;
            return equals != NULL ? parse_switch(a, equals + 1, argv[*i], err) : 0;
        }
        if (equals == NULL && *i + 1 >= argc)
            return err_set(err, ERR_INPUT, "--%s needs a value: %s", a->name, a->value);
        snprintf(from, sizeof(from), "--%s", a->name);
        return set_text(a, equals != NULL ? equals + 1 : argv[++*i], from, err);
    }
    return unknown(table, n, word, len, err);
}

int args_parse(const struct arg *table, size_t n, int *argc, char **argv, struct err *err)
{
    int kept = 1;
    int rc;

    CHECK(n <= ARGS_MAX);
    rc = parse_environment(table, n, err);
    for (int i = 1; rc == 0 && i < *argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            while (++i < *argc)
                argv[kept++] = argv[i];
            break;
        }
        if (strcmp(argv[i], "-h") == 0)
            argv[i] = (char *)"--help";
        if (strncmp(argv[i], "--", 2) == 0)
            rc = parse_flag(table, n, *argc, argv, &i, err);
        else
            argv[kept++] = argv[i];
    }
    *argc = kept;
    return rc;
}

void args_help(const struct arg *table, size_t n, FILE *out)
{
    for (size_t i = 0; i < n; i++) {
        const char *line = table[i].help;
        char head[64];

        snprintf(head, sizeof(head), "--%s%s%s", table[i].name, table[i].value ? " " : "",
                 table[i].value ? table[i].value : "");
        for (bool first = true; *line != '\0'; first = false) {
            size_t len = strcspn(line, "\n");

            fprintf(out, "  %-26s %.*s\n", first ? head : "", (int)len, line);
            line += len + (line[len] == '\n');
        }
        if (table[i].env != NULL)
            fprintf(out, "  %-26s (environment: %s)\n", "", table[i].env);
    }
}
