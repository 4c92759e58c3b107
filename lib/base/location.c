/* location.c - see location.h. */
#include "base/location.h"

#include <stdbool.h>
#include <string.h>

#include "base/err.h"

static bool is_name_char(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.';
}

int location_check(const char *what, const char *path, struct err *err)
{
    size_t parts = 1, length = 0;

    if (path[0] == '\0')
        return 0;
    for (const char *p = path;; p++) {
        if (is_name_char(*p)) {
            if (++length > LOCATION_PART_BYTES)
                return err_set(err, ERR_INPUT, "%s: a name has more than %d characters: '%.128s'",
                               what, LOCATION_PART_BYTES, path);
        } else if (*p != '/' && *p != '\0') {
            return err_set(err, ERR_INPUT,
                           "%s: character 0x%02x; expected a path such as zone/rack/host with letters, "
                           "digits, '-', '_' and '.'",
                           what, (unsigned char)*p);
        } else if (length == 0) {
            return err_set(err, ERR_INPUT,
                           "%s: '%.128s' has an empty name; expected a path such as zone/rack/host",
                           what, path);
        } else if (*p == '\0') {
            return 0;
        } else {
            length = 0;
            if (++parts > LOCATION_PARTS)
                return err_set(err, ERR_INPUT, "%s: '%.128s' has more than %d names", what, path,
                               LOCATION_PARTS);
        }
    }
}

void location_name(const char *text, char out[LOCATION_PART_BYTES + 1])
{
    size_t n = 0;

    for (; text[n] != '\0' && n < LOCATION_PART_BYTES; n++)
        out[n] = is_name_char(text[n]) ? text[n] : '_';
    out[n] = '\0';
}

size_t location_rack(const char *path)
{
    const char *end = strrchr(path, '/');

    return end != NULL ? (size_t)(end - path) : 0;
}

int location_compare(const char *a, const char *b)
{
    for (; *a != '\0' && *a == *b; a++)
        b++;
    if (*a == *b)
        return 0;
    if (*a == '\0' || *b == '\0')
        return *a == '\0' ? -1 : 1;
    if (*a == '/' || *b == '/') /* one name ends here, so it is the shorter one */
        return *a == '/' ? -1 : 1;
    return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
}

unsigned location_common(const char *a, const char *b)
{
    unsigned n = 0;

    for (size_t i = 0;; i++) {
        bool a_ends = a[i] == '/' || a[i] == '\0', b_ends = b[i] == '/' || b[i] == '\0';

        if (a_ends && b_ends && i > 0)
            n++;
        if (a[i] != b[i] || a[i] == '\0')
            return n;
    }
}

/* ---- Slurm ---- */

static size_t count_parts(const char *s)
{
    size_t n = 1;

    for (; *s != '\0'; s++)
        n += *s == '.';
    return n;
}

static int check_pattern(const struct location_env *env, struct err *err)
{
    const char *last = strrchr(env->pattern, '.');

    last = last != NULL ? last + 1 : env->pattern;
    if (strcmp(last, "node") == 0 && count_parts(env->pattern) == count_parts(env->slurm))
        return 0;
    return err_set(err, ERR_INPUT,
                   "SLURM_TOPOLOGY_ADDR_PATTERN '%.100s' does not describe SLURM_TOPOLOGY_ADDR '%.100s' with "
                   "a node as the last part; set TRAINERD_LOCATION, for example to rack/host",
                   env->pattern, env->slurm);
}

static int from_slurm(const struct location_env *env, char out[LOCATION_BYTES], struct err *err)
{
    const char *p = env->slurm;
    size_t n = 0;
    int rc = env->pattern != NULL && env->pattern[0] != '\0' ? check_pattern(env, err) : 0;

    if (rc < 0)
        return rc;
    for (size_t skip = count_parts(p); skip > LOCATION_PARTS; skip--)
        p = strchr(p, '.') + 1;
    for (; *p != '\0'; p++) {
        if (n == LOCATION_BYTES - 1)
            return err_set(err, ERR_INPUT,
                           "SLURM_TOPOLOGY_ADDR: the last %d parts have more than %d characters; set "
                           "TRAINERD_LOCATION, for example to rack/host",
                           LOCATION_PARTS, LOCATION_BYTES - 1);
        out[n++] = *p == '.' ? '/' : is_name_char(*p) ? *p : '_';
    }
    out[n] = '\0';
    rc = location_check("SLURM_TOPOLOGY_ADDR", out, err);
    return rc < 0
               ? err_wrap(err, rc, "set TRAINERD_LOCATION in its place, for example to rack/host")
               : 0;
}

int location_find(const struct location_env *env, char out[LOCATION_BYTES], const char **from,
                  struct err *err)
{
    bool is_own = env->own != NULL && env->own[0] != '\0';
    bool is_slurm = !is_own && env->slurm != NULL && env->slurm[0] != '\0';
    char path[LOCATION_BYTES] = "";
    int rc = 0;

    if (is_own)
        rc = location_check("TRAINERD_LOCATION", env->own, err);
    if (rc == 0 && is_own)
        strcpy(path, env->own); /* a valid path fits */
    if (rc == 0 && is_slurm)
        rc = from_slurm(env, path, err);
    if (rc < 0)
        return rc;
    memcpy(out, path, sizeof(path));
    *from = is_own ? "TRAINERD_LOCATION" : is_slurm ? "SLURM_TOPOLOGY_ADDR" : "";
    return 0;
}
