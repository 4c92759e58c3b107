#include "base/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"

int cgroup_read_file(const char *path, struct buf *out, struct err *err)
{
    enum { LIMIT = 16 << 20 };
    char piece[4096];
    size_t before = out->len;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    if (fd < 0)
        return err_sys(err, errno, "open '%s'", path);
    do {
        n = read(fd, piece, sizeof(piece));
        if (n > 0)
            buf_add(out, piece, (size_t)n);
    } while ((n > 0 && out->len - before <= LIMIT) || (n < 0 && errno == EINTR));
    if (n < 0) {
        int rc = err_sys(err, errno, "read '%s'", path);

        close(fd);
        return rc;
    }
    close(fd);
    buf_str(out, ""); /* an empty file is an empty string */
    if (out->failed)
        return err_set(err, ERR_NOMEM, "read '%s': out of memory", path);
    if (n > 0)
        return err_set(err, ERR_INPUT, "read '%s': larger than %d bytes", path, LIMIT);
    if (memchr(out->data + before, '\0', out->len - before) != NULL)
        return err_set(err, ERR_INPUT, "read '%s': it contains a NUL", path);
    return 0;
}

/* Returns whether a list "cpu,memory" contains the word. */
static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);

    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, n) == 0 && (at[n] == ',' || at[n] == '\0'))
            return true;
    }
    return false;
}

/* Finds the path of the group inside its hierarchy. A line is "4:memory:/a/b", of version 2 "0::/a/b".
 * `text` is changed. Returns NULL if no line names the hierarchy. *is_malformed: a line has another form. */
static const char *find_path(char *text, int version, const char *controller, bool *is_malformed)
{
    char *rest = NULL;

    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        char *list = strchr(line, ':'), *path = list != NULL ? strchr(list + 1, ':') : NULL;

        if (path == NULL || path[1] != '/') {
            *is_malformed = true;
            continue;
        }
        list++;
        *path++ = '\0';
        if (version == 2 ? list[0] == '\0' : has_word(list, controller))
            return path;
    }
    return NULL;
}

/* Replaces the escapes of mountinfo, \040 for a blank, in place. */
static void unescape(char *s)
{
    char *to = s;

    for (; *s != '\0'; to++) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
            s[3] >= '0' && s[3] <= '7') {
            *to = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
            s += 4;
        } else {
            *to = *s++;
        }
    }
    *to = '\0';
}

/* Finds the mount of the hierarchy. A line of proc(5) mountinfo is
 *     35 31 0:32 ROOT FOLDER OPTIONS ... - TYPE SOURCE SUPER_OPTIONS
 * `text` is changed. Returns false if the hierarchy is not mounted. */
static bool find_mount(char *text, int version, const char *controller, char **shown, char **folder)
{
    char *rest = NULL;

    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        char *word[5], *save = NULL, *after = strstr(line, " - "), *type, *options;
        size_t n = 0;

        if (after == NULL)
            continue;
        *after = '\0';
        for (char *w = strtok_r(line, " ", &save); w != NULL && n < 5;
             w = strtok_r(NULL, " ", &save))
            word[n++] = w;
        type = strtok_r(after + 3, " ", &save);
        (void)strtok_r(NULL, " ", &save); /* the source is any word */
        options = strtok_r(NULL, " ", &save);
        if (n < 5 || type == NULL)
            continue;
        if (version == 2
                ? strcmp(type, "cgroup2") != 0
                : strcmp(type, "cgroup") != 0 || options == NULL || !has_word(options, controller))
            continue;
        unescape(word[3]);
        unescape(word[4]);
        *shown = word[3];
        *folder = word[4];
        return true;
    }
    return false;
}

/* Returns the part of `path` below the group `shown`; "" if the mount does not show the group: a
 * container may see only its own group, under its name on the host. */
static const char *path_below(const char *shown, const char *path)
{
    size_t n = strlen(shown);

    if (strstr(path, "/..") != NULL)
        return "";
    if (strcmp(shown, "/") == 0)
        return strcmp(path, "/") == 0 ? "" : path;
    return strncmp(path, shown, n) == 0 && (path[n] == '/' || path[n] == '\0') ? path + n : "";
}

static int find(const char *root, int version, const char *controller, struct buf *groups,
                struct buf *mounts, struct cgroup *out, struct err *err)
{
    char name[CGROUP_PATH_BYTES], *shown, *folder;
    bool is_malformed = false;
    const char *path;
    int rc, n;

    snprintf(name, sizeof(name), "%s/proc/self/cgroup", root);
    rc = cgroup_read_file(name, groups, err);
    if (rc < 0)
        return rc;
    path = find_path(groups->data, version, controller, &is_malformed);
    if (path == NULL && is_malformed)
        return err_set(err, ERR_INPUT, "'%s': expected lines such as '4:memory:/a' or '0::/a'",
                       name);
    if (path == NULL)
        return err_set(err, ERR_NOENT, "'%s': no group of version %d has the controller %s", name,
                       version, controller);
    snprintf(name, sizeof(name), "%s/proc/self/mountinfo", root);
    rc = cgroup_read_file(name, mounts, err);
    if (rc < 0)
        return rc;
    if (!find_mount(mounts->data, version, controller, &shown, &folder))
        return err_set(err, ERR_NOENT, "'%s': no control groups of version %d are mounted", name,
                       version);
    if (strlen(root) + strlen(folder) + strlen(path) >= CGROUP_PATH_BYTES)
        return err_set(err, ERR_INPUT, "'%s': the folder of the group has a name of over %d bytes",
                       name, CGROUP_PATH_BYTES);
    n = snprintf(out->mount, sizeof(out->mount), "%s%s", root, folder);
    memcpy(out->own, out->mount, (size_t)n + 1);
    snprintf(out->own + n, sizeof(out->own) - (size_t)n, "%s", path_below(shown, path));
    return 0;
}

int cgroup_find(const char *root, int version, const char *controller, struct cgroup *out,
                struct err *err)
{
    struct buf groups = { 0 }, mounts = { 0 };
    int rc = find(root, version, controller, &groups, &mounts, out, err);

    buf_fini(&groups);
    buf_fini(&mounts);
    return rc;
}

bool cgroup_parent(const struct cgroup *g, char folder[CGROUP_PATH_BYTES])
{
    size_t n = strlen(g->mount);
    char *slash;

    if (strlen(folder) <= n)
        return false;
    slash = strrchr(folder + n, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    return true;
}
