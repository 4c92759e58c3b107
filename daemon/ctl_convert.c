/* ctl_convert.c - `trainerctl convert`: converts CSV, NumPy arrays and folders of images to
 * TFRecord files and prints the description of the features for the job file; copies a checkpoint with shard files to one
 * with whole tables. */
#include "daemon/ctl_convert.h"

#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/text.h"
#include "daemon/args.h"
#include "daemon/ctl.h"
#include "data/write.h"

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

static bool is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* ---- inputs ---- */

static int by_path(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int add_input(struct convert *c, const char *name, size_t n_name, const char *path,
                     struct err *err)
{
    struct convert_input in = { strndup(name, n_name), strdup(path) };

    if (in.name != NULL && in.path != NULL && VEC_PUSH(c->inputs, in))
        return 0;
    free(in.name);
    free(in.path);
    return err_set(err, ERR_NOMEM, "out of memory");
}

/* Adds the inputs of one command-line word: [NAME=]PATH, where PATH is a file, a folder or a
 * pattern. */
static int add_inputs(struct convert *c, const char *word, struct err *err)
{
    const char *equals = access(word, F_OK) != 0 ? strchr(word, '=') : NULL;
    const char *path = equals != NULL ? equals + 1 : word;
    size_t n_name = equals != NULL ? (size_t)(equals - word) : 0;
    glob_t g;
    int rc = 0;

    rc = fs_check_path(path, err);
    if (rc < 0)
        return rc;
    if (access(path, F_OK) == 0)
        return add_input(c, word, n_name, path, err);
    if (glob(path, GLOB_ERR | GLOB_NOSORT, NULL, &g) != 0) {
        globfree(&g);
        return err_set(err, ERR_NOENT, "'%.200s': no such file", path);
    }
    qsort(g.gl_pathv, g.gl_pathc, sizeof(*g.gl_pathv), by_path); /* the locale must not matter */
    for (size_t i = 0; rc == 0 && i < g.gl_pathc; i++)
        rc = add_input(c, word, n_name, g.gl_pathv[i], err);
    globfree(&g);
    return rc;
}

static void free_inputs(struct convert *c)
{
    for (size_t i = 0; i < c->inputs.n; i++) {
        free(c->inputs.at[i].name);
        free(c->inputs.at[i].path);
    }
    VEC_FINI(c->inputs);
}

/* ---- the command ---- */

static const struct kind {
    const char *end; /* ending of the path; NULL: a folder */
    int (*run)(struct convert *c, struct err *err);
} kinds[] = { { NULL, convert_images }, { ".npy", convert_arrays }, { ".csv", convert_tables } };

static const struct kind *kind_of(const char *path)
{
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (kinds[i].end == NULL ? is_folder(path) : ends_with(path, kinds[i].end))
            return &kinds[i];
    return NULL;
}

/* Sets *out to the kind of the inputs. Errors: ERR_INPUT if they are not all of one known kind. */
static int find_kind(const struct convert *c, const struct kind **out, struct err *err)
{
    *out = kind_of(c->inputs.at[0].path);
    for (size_t i = 0; i < c->inputs.n; i++) {
        const char *path = c->inputs.at[i].path;

        if (kind_of(path) == NULL)
            return err_set(err, ERR_INPUT, "'%.200s': expected NAME=FILE.npy, FILE.csv or a folder",
                           path);
        if (kind_of(path) != *out)
            return err_set(err, ERR_INPUT,
                           "'%.200s' and '%.200s' together: expected one kind of input",
                           c->inputs.at[0].path, path);
    }
    return 0;
}

/* Writes the list of classes, so that other folders can be converted with the same labels. */
static int write_classes(const struct convert *c, struct err *err)
{
    char *path = NULL;
    int rc = asprintf(&path, "%s.classes.txt", c->out) < 0 || c->class_list.failed
                 ? err_set(err, ERR_NOMEM, "classes: out of memory")
                 : fs_replace(path, c->class_list.data, c->class_list.len, err);

    if (rc == 0)
        printf("classes: %s; convert the images of the evaluation with --classes %s\n", path, path);
    else
        rc = err_wrap(
            err, rc,
            "the samples are written, but the list of their classes is not; run the command again");
    free(path);
    return rc;
}

static int convert(struct convert *c, char **words, int n, struct err *err)
{
    const struct kind *kind = NULL;
    uint64_t shards = 1;
    int rc = 0;

    if (c->out == NULL)
        return err_set(err, ERR_INPUT,
                       "--out PREFIX is missing: the beginning of the names of the files");
    if (c->shards_text != NULL && (!text_u64(c->shards_text, 1000, &shards) || shards == 0))
        return err_set(err, ERR_INPUT, "--shards: expected a number from 1 to 1000, found '%.40s'",
                       c->shards_text);
    if (c->seed_text != NULL && !text_u64(c->seed_text, UINT64_MAX, &c->seed))
        return err_set(err, ERR_INPUT, "--seed: expected a number, found '%.40s'", c->seed_text);
    if (c->delimiter != NULL && strlen(c->delimiter) != 1)
        return err_set(err, ERR_INPUT, "--delimiter: expected one character");
    for (int i = 0; rc == 0 && i < n; i++)
        rc = add_inputs(c, words[i], err);
    if (rc == 0 && convert_is_checkpoint(c->inputs.at[0].path))
        return convert_checkpoint(c, err);
    if (rc == 0)
        rc = find_kind(c, &kind, err);
    if (rc == 0)
        rc = data_writer_open(c->out, (uint32_t)shards, &c->writer, err);
    if (rc < 0)
        return rc;
    rc = kind->run(c, err);
    if (rc == 0)
        rc = data_writer_commit(c->writer, err);
    if (rc == 0)
        printf("%" PRIu64 " samples in %" PRIu64 " file%s %s-*.tfrecord\n\"features\": {\n%s\n}\n",
               data_writer_records(c->writer), shards, shards == 1 ? "" : "s", c->out,
               c->features.data != NULL ? c->features.data : "");
    data_writer_close(c->writer);
    if (rc == 0 && (c->class_list.len > 0 || c->class_list.failed))
        rc = write_classes(c, err);
    return rc;
}

int ctl_convert(int argc, char **argv)
{
    struct convert c = { .out = NULL };
    const struct arg table[] = {
        { "out", "PREFIX", NULL, "files are PREFIX-00000-of-0000N.tfrecord", &c.out, NULL },
        { "shards", "N", NULL, "how many files; default: 1", &c.shards_text, NULL },
        { "label", "COLUMN", NULL, "CSV: this column is a feature, the others together are \"x\";\n"
                                   "default: each column is a feature", &c.label, NULL },
        { "no-header", NULL, NULL, "CSV: the first line is a sample; columns are 0, 1, 2 ...", NULL,
          &c.no_header },
        { "delimiter", "C", NULL, "CSV: between two fields; default: a comma", &c.delimiter, NULL },
        { "seed", "N", NULL, "images: from which their order is drawn; default: 0", &c.seed_text, NULL },
        { "classes", "FILE", NULL, "images: a class in each line, the first has the label 0; default: the folders by\n"
                                   "name, which are written to PREFIX.classes.txt", &c.classes, NULL },
        { "help", NULL, NULL, "this text", NULL, &c.help },
    };
    struct err err;
    int rc = args_parse(table, COUNT_OF(table), &argc, argv, &err);

    if (rc == 0 && (c.help || argc < 2)) {
        fprintf(c.help ? stdout : stderr,
                "usage: trainerctl convert --out PREFIX [options] INPUT...\n\nWrites TFRecord files and says how a "
                "job describes their features. INPUT is one of\n  NAME=FILE.npy ...   arrays, the first dimension "
                "counts samples; of several files of\n                      a name the first of each name belong "
                "together, then the second ...\n  FILE.csv ...        of numbers, one after the other\n  FOLDER   "
                "           with a folder of JPEG or PNG files for each class\n  CHECKPOINT          a folder step-* "
                "whose tables are in shard files: it is verified, and copied\n                      to the new folder "
                "PREFIX with whole tables\nFILE may be a pattern, in quotes; what "
                "it finds is taken in the order of the names.\n\n");
        args_help(table, COUNT_OF(table), c.help ? stdout : stderr);
        return c.help ? CTL_OK : CTL_USAGE;
    }
    if (rc == 0)
        rc = convert(&c, argv + 1, argc - 1, &err);
    free_inputs(&c);
    buf_fini(&c.list);
    buf_fini(&c.features);
    buf_fini(&c.class_list);
    if (rc < 0)
        fprintf(stderr, "trainerctl: %s\n", err.text);
    return ctl_exit_code(rc);
}
