/* sample_log.c - see sample_log.h. Lines are formatted in memory that is allocated at the start. */
#include "train/sample_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/err.h"
#include "data/data.h"
#include "train/sample_file.h"

enum {
    NUMBER_BYTES = 21, /* the longest number and a space */
    GROUP_BYTES = NUMBER_BYTES + 1 + 8,
    HEAD_BYTES = 8 + GROUP_BYTES + 2 * NUMBER_BYTES,
    QUEUE_BYTES = 16 << 20, /* of lines that wait for the storage */
};

struct lines {  /* of a replica, for one step */
    char *text; /* owned: [bytes of a step] */
    size_t used;
};

struct sample_log {
    char *path; /* owned */
    struct sample_file *file; /* owned */
    uint32_t n;
    size_t room;                 /* of each replica's text */
    struct lines *lines;         /* [n] owned */
    char group[GROUP_BYTES + 2]; /* with the space before it */
};

static void put_word(struct lines *l, const char *word)
{
    size_t n = strlen(word);

    memcpy(l->text + l->used, word, n);
    l->used += n;
}

static void put_number(struct lines *l, uint64_t x)
{
    char digits[NUMBER_BYTES];
    size_t n = 0;

    do
        digits[n++] = (char)('0' + x % 10);
    while ((x /= 10) > 0);
    l->text[l->used++] = ' ';
    while (n > 0)
        l->text[l->used++] = digits[--n];
}

/* ---- opening and closing ---- */

static int open_path(const char *path, int *fd, struct err *err)
{
    struct stat st;
    int rc;

    *fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (*fd < 0) {
        rc = err_sys(err, errno, "open '%s'", path);
        return rc == ERR_FULL || errno == EIO ? rc : err_wrap(err, ERR_INPUT, "sample log");
    }
    rc = fstat(*fd, &st) < 0    ? err_sys(err, errno, "stat '%s'", path)
         : !S_ISREG(st.st_mode) ? err_set(err, ERR_INPUT, "sample log '%s': it is not a file", path)
                                : 0;
    if (rc < 0)
        close(*fd);
    return rc;
}

static int open_file(struct sample_log *l, const struct sample_log_opts *opts, bool *is_torn,
                     struct err *err)
{
    struct sample_file_opts fo = { .path = l->path, .room = QUEUE_BYTES, .on_loss = opts->on_loss, .arg = opts->arg };
    char last = '\n';
    off_t end;
    int rc = open_path(l->path, &fo.fd, err);

    if (rc < 0)
        return rc;
    end = lseek(fo.fd, 0, SEEK_END);
    if (end < 0 || (end > 0 && pread(fo.fd, &last, 1, end - 1) != 1))
        rc = err_sys(err, errno, "sample log: read '%s'", l->path);
    *is_torn = last != '\n';
    if (rc == 0)
        rc = sample_file_open(&fo, &l->file, err);
    if (rc < 0)
        close(fo.fd);
    return rc;
}

/* Marks a line that the previous process did not finish, and starts a new one. */
static int begin(struct sample_log *l, bool is_torn, struct err *err)
{
    char text[64 + 2 * NUMBER_BYTES];
    int n = snprintf(text, sizeof(text), "%sopen %llu %d\n", is_torn ? " # torn\n" : "",
                     (unsigned long long)clock_wall_us(), (int)getpid());

    return sample_file_append(l->file, text, (size_t)n, err);
}

int sample_log_open(const struct sample_log_opts *opts, struct sample_log **out, struct err *err)
{
    struct sample_log *l = calloc(1, sizeof(*l));
    bool is_torn;
    int rc = 0;

    if (l == NULL)
        return err_set(err, ERR_NOMEM, "sample log: out of memory");
    l->n = opts->replicas;
    l->path = strdup(opts->path);
    l->lines = calloc(l->n, sizeof(*l->lines));
    l->room = (size_t)opts->lanes * (HEAD_BYTES + (size_t)opts->lane_batch * NUMBER_BYTES);
    for (uint32_t i = 0; l->lines != NULL && i < l->n; i++) {
        l->lines[i].text = malloc(l->room);
        rc |= l->lines[i].text == NULL;
    }
    if (l->path == NULL || l->lines == NULL || rc != 0)
        rc = err_set(err, ERR_NOMEM, "sample log: out of memory");
    if (rc == 0)
        rc = open_file(l, opts, &is_torn, err);
    if (rc == 0)
        rc = begin(l, is_torn, err);
    if (rc < 0) {
        sample_log_close(l);
        return rc;
    }
    *out = l;
    return 0;
}

void sample_log_close(struct sample_log *l)
{
    if (l == NULL)
        return;
    sample_file_close(l->file);
    for (uint32_t i = 0; l->lines != NULL && i < l->n; i++)
        free(l->lines[i].text);
    free(l->lines);
    free(l->path);
    free(l);
}

/* ---- a step ---- */

void sample_log_group(struct sample_log *l, uint64_t generation, const void *key, size_t n_key)
{
    static const char what[] = "sample log"; /* the key itself is secret */
    uint8_t digest[DIGEST_BYTES];
    char hex[DIGEST_HEX_BYTES];

    if (l == NULL)
        return;
    digest_hmac(key, n_key, what, sizeof(what) - 1, digest);
    digest_hex(digest, hex);
    snprintf(l->group, sizeof(l->group), " %llu.%.8s", (unsigned long long)generation, hex);
    for (uint32_t i = 0; i < l->n; i++)
        l->lines[i].used = 0;
}

void sample_log_batch(struct sample_log *l, uint32_t replica, const struct data_batch *b)
{
    struct lines *to;

    if (l == NULL)
        return;
    to = &l->lines[replica];
    CHECK(l->room - to->used >= HEAD_BYTES + (size_t)b->n_real * NUMBER_BYTES);
    put_word(to, "give");
    put_word(to, l->group);
    put_number(to, b->step);
    put_number(to, b->lane);
    for (uint32_t i = 0; i < b->n_real; i++) /* the others are padding */
        put_number(to, b->samples[i]);
    put_word(to, "\n");
}

int sample_log_write(struct sample_log *l, uint32_t replica, struct err *err)
{
    struct lines *from;
    int rc;

    if (l == NULL)
        return 0;
    from = &l->lines[replica];
    rc = sample_file_append(l->file, from->text, from->used, err);
    from->used = 0;
    return rc;
}

void sample_log_done(struct sample_log *l, uint64_t step)
{
    char room[HEAD_BYTES];
    struct lines line = { .text = room };

    if (l == NULL)
        return;
    put_word(&line, "done");
    put_word(&line, l->group);
    put_number(&line, step);
    put_number(&line, clock_wall_us());
    put_word(&line, "\n");
    (void)sample_file_append(l->file, line.text, line.used, NULL); /* the next sample_log_write() reports a failure */
}
