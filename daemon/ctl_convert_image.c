/* ctl_convert_image.c - converts a folder that contains one folder of images for each class. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
    VEC(char *) classes; /* owned */
};

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* the locale must not matter */
}

static int visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static bool is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int list_class(struct pictures *p, const char *folder, struct err *err)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, visible, by_name), rc = 0;

    if (n < 0)
        return err_sys(err, errno, "list '%s'", folder);
    for (int i = 0; i < n; i++) {
        char *path = fs_join(folder, entries[i]->d_name);

        if (rc == 0 && (path == NULL ||
                        !VEC_PUSH(p->all, ((struct picture){ path, (uint32_t)p->classes.n }))))
            rc = err_set(err, ERR_NOMEM, "list '%s': out of memory", folder);
        if (rc < 0)
            free(path);
        free(entries[i]);
    }
    free(entries);
    return rc;
}

static int list_classes(struct pictures *p, const char *folder, struct err *err)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, visible, by_name), rc = 0;

    if (n < 0)
        return err_sys(err, errno, "list '%s'", folder);
    for (int i = 0; i < n; i++) {
        char *path = fs_join(folder, entries[i]->d_name), *name = strdup(entries[i]->d_name);

        if (rc == 0 && (path == NULL || name == NULL))
            rc = err_set(err, ERR_NOMEM, "list '%s': out of memory", folder);
        if (rc == 0 && is_folder(path)) {
            rc = list_class(p, path, err);
            if (rc == 0 && VEC_PUSH(p->classes, name))
                name = NULL;
        }
        free(path);
        free(name);
        free(entries[i]);
    }
    free(entries);
    if (rc == 0 && p->all.n == 0)
        rc = err_set(err, ERR_INPUT,
                     "'%s': expected a folder for each class with its images inside", folder);
    return rc;
}

static int add_picture(struct convert *c, const struct picture *p, struct err *err)
{
    int64_t label = p->label;
    struct buf file = { 0 };
    uint32_t w, h;
    int rc = fs_read(p->path, CONVERT_FILE_BYTES_MAX, &file, err);

    if (rc == 0) {
        rc = data_image_size(file.data != NULL ? file.data : "", file.len, &w, &h, err);
        if (rc < 0)
            rc = err_wrap(err, rc, "'%s'", p->path);
    }
    if (rc == 0) {
        data_write_bytes(&c->list, "image", file.data, file.len);
        data_write_ints(&c->list, "label", &label, 1);
        rc = data_writer_add(c->writer, &c->list, err);
    }
    buf_fini(&file);
    return rc;
}

/* Writes the images in an order drawn from the seed, so that each TFRecord file has samples of
 * every class. */
int convert_images(struct convert *c, struct err *err)
{
    struct pictures p = { .all = { NULL, 0, 0 } };
    int rc = c->inputs.n == 1
                 ? list_classes(&p, c->inputs.at[0].path, err)
                 : err_set(err, ERR_INPUT, "expected one folder of images, found %zu inputs",
                           c->inputs.n);

    for (size_t i = 0; rc == 0 && i < p.all.n; i++)
        rc = add_picture(c, &p.all.at[rng_permute(c->seed, 0, p.all.n, i)], err);
    if (rc == 0) {
        convert_describe(c, "image", "uint8", "[3, 224, 224]", ", \"encoded\": true");
        convert_describe(c, "label", "int64", "[]", "");
        for (size_t i = 0; i < p.classes.n; i++)
            printf("class %zu: %s\n", i, p.classes.at[i]);
    }
    for (size_t i = 0; i < p.all.n; i++)
        free(p.all.at[i].path);
    for (size_t i = 0; i < p.classes.n; i++)
        free(p.classes.at[i]);
    VEC_FINI(p.all);
    VEC_FINI(p.classes);
    return rc;
}
