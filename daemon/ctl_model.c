/* ctl_model.c - `trainerctl model`: writes a predefined network (lib/zoo) as an ONNX file. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/text.h"
#include "daemon/ctl.h"
#include "graph/build.h"
#include "zoo/zoo.h"

static void help(FILE *out)
{
    size_t n, i, k;
    const struct zoo_def *nets = zoo_all(&n);

    fprintf(out, "usage: trainerctl model NAME [--set KEY=VALUE]... [--seed N] -o FILE\n\n"
                 "Writes a network as ONNX, with initial weights that follow from the seed (0).\n"
                 "\n");
    for (i = 0; i < n; i++) {
        fprintf(out, "  %-10s %s\n", nets[i].name, nets[i].doc);
        for (k = 0; k < ZOO_KEYS && nets[i].keys[k].name != NULL; k++)
            fprintf(out, "  %-10s   %s=%" PRId64 "  %s\n", "", nets[i].keys[k].name,
                    nets[i].keys[k].value, nets[i].keys[k].doc);
    }
}

struct request {
    const struct zoo_def *def;
    const char *path;
    int64_t values[ZOO_KEYS]; /* one per key of `def` */
    uint64_t seed;
    const char *sets[ZOO_KEYS * 4];
    size_t n_sets;
};

static int find_net(struct request *r, const char *name, struct err *err)
{
    const char *names[16], *near;
    size_t n, i;
    const struct zoo_def *nets = zoo_all(&n);

    CHECK(n <= COUNT_OF(names));
    for (i = 0; i < n; i++) {
        names[i] = nets[i].name;
        if (strcmp(nets[i].name, name) == 0)
            r->def = &nets[i];
    }
    if (r->def != NULL)
        return 0;
    near = text_nearest(name, names, n);
    return err_set(err, ERR_INPUT, "there is no network '%.60s'%s%s%s", name,
                   near != NULL ? "; did you mean " : ": --help lists them",
                   near != NULL ? near : "", near != NULL ? "?" : "");
}

static int set_key(struct request *r, const char *text, struct err *err)
{
    const char *names[ZOO_KEYS], *near, *equals = strchr(text, '=');
    char given[64];
    const struct zoo_key *keys = r->def->keys;
    size_t n = 0;
    uint64_t value;

    if (equals == NULL)
        return err_set(err, ERR_INPUT, "--set: expected KEY=VALUE, found '%.60s'", text);
    for (; n < ZOO_KEYS && keys[n].name != NULL; n++) {
        names[n] = keys[n].name;
        if (strlen(keys[n].name) != (size_t)(equals - text) ||
            strncmp(keys[n].name, text, (size_t)(equals - text)) != 0)
            continue;
        if (!text_u64(equals + 1, (uint64_t)keys[n].hi, &value) || (int64_t)value < keys[n].lo)
            return err_set(err, ERR_INPUT,
                           "--set %s: expected a number from %" PRId64 " to %" PRId64
                           ", found '%.40s'",
                           keys[n].name, keys[n].lo, keys[n].hi, equals + 1);
        r->values[n] = (int64_t)value;
        return 0;
    }
    snprintf(given, sizeof(given), "%.*s", (int)(equals - text), text);
    near = text_nearest(given, names, n);
    return err_set(err, ERR_INPUT, "--set: '%s' has no '%s'%s%s%s", r->def->name, given,
                   near != NULL ? "; did you mean " : "", near != NULL ? near : "",
                   near != NULL ? "?" : "");
}

static int parse(struct request *r, int argc, char **argv, struct err *err)
{
    const char *name = NULL;
    int rc;

    for (int i = 1; i < argc; i++) {
        bool takes = strcmp(argv[i], "--set") == 0 || strcmp(argv[i], "--seed") == 0 ||
                     strcmp(argv[i], "-o") == 0;

        if (takes && i + 1 == argc)
            return err_set(err, ERR_INPUT, "%s needs a value", argv[i]);
        if (strcmp(argv[i], "-o") == 0) {
            r->path = argv[++i];
        } else if (strcmp(argv[i], "--seed") == 0) {
            if (!text_u64(argv[++i], UINT64_MAX, &r->seed))
                return err_set(err, ERR_INPUT, "--seed: expected a number, found '%.40s'", argv[i]);
        } else if (strcmp(argv[i], "--set") == 0) {
            if (r->n_sets == COUNT_OF(r->sets))
                return err_set(err, ERR_INPUT, "--set: too many");
            r->sets[r->n_sets++] = argv[++i];
        } else if (argv[i][0] != '-' && name == NULL) {
            name = argv[i];
        } else {
            return err_set(err, ERR_INPUT, "'%.60s' is not an argument of model", argv[i]);
        }
    }
    if (name == NULL)
        return err_set(err, ERR_INPUT, "the name of a network is missing; --help lists the names");
    if (r->path == NULL)
        return err_set(err, ERR_INPUT, "-o FILE is missing");
    rc = fs_check_path(r->path, err);
    if (rc < 0)
        return err_wrap(err, rc, "-o");
    rc = find_net(r, name, err);
    for (size_t k = 0; rc == 0 && k < ZOO_KEYS; k++)
        r->values[k] = r->def->keys[k].value;
    for (size_t i = 0; rc == 0 && i < r->n_sets; i++)
        rc = set_key(r, r->sets[i], err);
    return rc;
}

static int make(struct request *r, struct err *err)
{
    struct build *b = NULL;
    int rc = zoo_build(r->def, r->values, r->seed, &b, err);

    if (rc == 0)
        rc = build_save(b, r->path, err);
    build_free(b);
    return rc;
}

int ctl_model(int argc, char **argv)
{
    struct request r = { 0 };
    struct err err = { 0 };
    int rc;

    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        help(stdout);
        return CTL_OK;
    }
    rc = parse(&r, argc, argv, &err);
    if (rc == 0)
        rc = make(&r, &err);
    if (rc < 0)
        fprintf(stderr, "trainerctl: %s\n", err.text);
    return ctl_exit_code(rc);
}
