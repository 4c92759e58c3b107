/* ctl_convert_image.c - converts a folder that contains one folder of images for each class. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/err.h"
#include "base/fs.h"
#include "base/rng.h"
#include "daemon/ctl_convert.h"
#include "data/data.h"
#include "data/write.h"

struct picture {
    char *path; /* owned */
    uint32_t label;
};

struct pictures {
    VEC(struct picture) all;
    VEC(char *) classes;       /* owned; the label of a class is its index */
    uint32_t n_color, n_turned; /* images with colors; with another orientation than that in which they are stored */
};

enum { CLASSES_BYTES_MAX = 1 << 24 };

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* the locale must not matter */
}

/* Leaves out hidden files, and those that Windows, macOS and Synology add to folders. */
static int visible(const struct dirent *e)
{
    static const char *const others[] = { "Thumbs.db", "desktop.ini", "__MACOSX", "@eaDir" };

    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (strcmp(e->d_name, others[i]) == 0)
            return 0;
    return e->d_name[0] != '.';
}

static bool is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int list_class(struct pictures *p, const char *folder, uint32_t label, struct err *err)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, visible, by_name), rc = 0;

    if (n < 0)
        return err_sys(err, errno, "list '%s'", folder);
    for (int i = 0; i < n; i++) {
        char *path = fs_join(folder, entries[i]->d_name);

        if (rc == 0 && (path == NULL ||
                        !VEC_PUSH(p->all, ((struct picture){ path, label }))))
            rc = err_set(err, ERR_NOMEM, "list '%s': out of memory", folder);
        if (rc < 0)
            free(path);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

/* Sets *label to that of a class, whose name has n bytes. Returns false if the class is not known. */
static bool find_label(const struct pictures *p, const char *name, size_t n, uint32_t *label)
{
    for (size_t i = 0; i < p->classes.n; i++)
        if (strlen(p->classes.at[i]) == n && memcmp(p->classes.at[i], name, n) == 0) {
            *label = (uint32_t)i;
            return true;
        }
    return false;
}

static int add_class(struct pictures *p, const char *name, size_t n, struct err *err)
{
    char *copy = strndup(name, n);

    if (copy != NULL && VEC_PUSH(p->classes, copy))
        return 0;
    free(copy);
    return err_set(err, ERR_NOMEM, "classes: out of memory");
}

/* Reads the list of classes: one in each line. */
static int read_classes(struct pictures *p, const char *path, struct err *err)
{
    struct buf text = { 0 };
    size_t at = 0, line = 0;
    uint32_t other;
    int rc = fs_read(path, CLASSES_BYTES_MAX, &text, err);

    while (rc == 0 && at < text.len) {
        const char *name = text.data + at;
        const char *end = memchr(name, '\n', text.len - at);
        size_t n = end != NULL ? (size_t)(end - name) : text.len - at;

        at += n + (end != NULL);
        line++;
        if (n > 0 && name[n - 1] == '\r')
            n--;
        if (n == 0 || memchr(name, '\0', n) != NULL || memchr(name, '/', n) != NULL)
            rc = err_set(err, ERR_INPUT,
                         "'%s': line %zu: expected the name of a class, which is that of its folder; found %s: correct "
                         "the line, or remove it",
                         path, line, n == 0 ? "an empty line" : "a path or bytes that are no text");
        else if (find_label(p, name, n, &other))
            rc = err_set(err, ERR_INPUT,
                         "'%s': line %zu: class '%.*s' is also in line %u: remove one of the lines",
                         path, line, (int)n, name, other + 1);
        else
            rc = add_class(p, name, n, err);
    }
    if (rc == 0 && p->classes.n == 0)
        rc = err_set(err, ERR_INPUT,
                     "'%s': expected a class in each line, found no line: name the file that the conversion "
                     "of the training images wrote", path);
    buf_fini(&text);
    return rc;
}

/* Adds the images of the folder of a class. */
static int add_folder(struct pictures *p, const char *path, const char *name, const char *list,
                      struct err *err)
{
    uint32_t label = (uint32_t)p->classes.n;
    int rc = 0;

    if (!find_label(p, name, strlen(name), &label)) {
        if (list != NULL)
            return err_set(err, ERR_INPUT,
                           "'%s': class '%s' is not in '%s', which has %zu classes: add it as the "
                           "last line, or remove the folder",
                           path, name, list, p->classes.n);
        rc = strchr(name, '\n') != NULL
                 ? err_set(err, ERR_INPUT,
                           "'%s': the name of a class has a line break: rename the folder", path)
                 : add_class(p, name, strlen(name), err);
    }
    return rc == 0 ? list_class(p, path, label, err) : rc;
}

static int list_classes(struct pictures *p, const char *folder, const char *list, struct err *err)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, visible, by_name), rc = 0;

    if (n < 0)
        return err_sys(err, errno, "list '%s'", folder);
    for (int i = 0; i < n; i++) {
        char *path = fs_join(folder, entries[i]->d_name);

        if (rc == 0 && path == NULL)
            rc = err_set(err, ERR_NOMEM, "list '%s': out of memory", folder);
        if (rc == 0 && is_folder(path))
            rc = add_folder(p, path, entries[i]->d_name, list, err);
        free(path);
        free(entries[i]);
    }
    free(entries);
    if (rc == 0 && p->all.n == 0)
        rc = err_set(err, ERR_INPUT,
                     "'%s': expected a folder for each class with its images inside", folder);
    return rc;
}

static int add_picture(struct convert *c, struct pictures *all, const struct picture *p,
                       struct err *err)
{
    int64_t label = p->label;
    struct buf file = { 0 };
    struct data_image_info info = { .channels = 0 };
    int rc = fs_read(p->path, CONVERT_FILE_BYTES_MAX, &file, err);

    if (rc == 0) {
        rc = data_image_info(file.data != NULL ? file.data : "", file.len, &info, err);
        if (rc < 0)
            rc = err_wrap(err, rc, "'%s'", p->path);
    }
    all->n_color += info.channels == 3;
    all->n_turned += info.orientation > 1;
    if (rc == 0) {
        data_write_bytes(&c->list, "image", file.data, file.len);
        data_write_ints(&c->list, "label", &label, 1);
        rc = data_writer_add(c->writer, &c->list, err);
    }
    buf_fini(&file);
    return rc;
}

static void describe(struct convert *c, const struct pictures *p)
{
    if (p->n_turned > 0)
        printf("%u of %zu images are stored in another orientation than that of their Exif data; remove "
               "\"orientation\" to use them as they are stored\n",
               p->n_turned, p->all.n);
    convert_describe(c, "image", "uint8", p->n_color > 0 ? "[3, 224, 224]" : "[1, 224, 224]",
                     p->n_turned > 0 ? ", \"encoded\": true, \"orientation\": \"exif\""
                                     : ", \"encoded\": true");
    convert_describe(c, "label", "int64", "[]", "");
    for (size_t i = 0; i < p->classes.n; i++)
        printf("class %zu: %s\n", i, p->classes.at[i]);
}

/* Writes the images in an order drawn from the seed, so that each TFRecord file has samples of
 * every class. */
int convert_images(struct convert *c, struct err *err)
{
    struct pictures p = { .all = { NULL, 0, 0 } };
    int rc = c->inputs.n == 1
                 ? 0
                 : err_set(err, ERR_INPUT, "expected one folder of images, found %zu inputs",
                           c->inputs.n);

    if (rc == 0 && c->classes != NULL)
        rc = read_classes(&p, c->classes, err);
    if (rc == 0)
        rc = list_classes(&p, c->inputs.at[0].path, c->classes, err);
    for (size_t i = 0; rc == 0 && i < p.all.n; i++)
        rc = add_picture(c, &p, &p.all.at[rng_permute(c->seed, 0, p.all.n, i)], err);
    for (size_t i = 0; c->classes == NULL && i < p.classes.n; i++)
        buf_printf(&c->class_list, "%s\n", p.classes.at[i]);
    if (rc == 0)
        describe(c, &p);
    for (size_t i = 0; i < p.all.n; i++)
        free(p.all.at[i].path);
    for (size_t i = 0; i < p.classes.n; i++)
        free(p.classes.at[i]);
    VEC_FINI(p.all);
    VEC_FINI(p.classes);
    return rc;
}
