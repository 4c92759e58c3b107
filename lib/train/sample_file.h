/* sample_file.h - appends the lines of a sample log to its file on a thread of its own, because a disk may
 * stall, and a training thread that waits for it delays the whole group.
 *
 * The rule of waiting: sample_file_append() returns when the text is in the file, as long as the storage
 * answers within SAMPLE_FILE_WAIT_MS. After a wait that exceeded this limit the calls only add to a queue,
 * until the storage has written something that fast again. A text that finds the queue full is dropped and
 * counted; when there is room again, the line "lost N" in its place states the number of lines.
 *
 * Threads: append from any; open and close from one. */
#ifndef TRAIN_SAMPLE_FILE_H
#define TRAIN_SAMPLE_FILE_H

#include <stddef.h>

struct err;
struct sample_file;

enum {
    SAMPLE_FILE_WAIT_MS = 200,
    SAMPLE_FILE_CLOSE_MS = 2000, /* the longest wait for the queue at the end */
};

struct sample_file_opts {
    const char *path; /* for messages; copied */
    int fd;           /* open for appending; owned after a success */
    size_t room;      /* bytes of the queue; a larger text is added to an empty queue */
    /* Called once for each gap, by the thread that drops the first text; `text` names the file. May be NULL. */
    void (*on_loss)(void *arg, const char *text);
    void *arg;
};

/* Starts the thread. Errors: ERR_IO, ERR_NOMEM. */
int sample_file_open(const struct sample_file_opts *opts, struct sample_file **out,
                     struct err *err);
/* Appends whole lines, with one write() unless the storage is slow. Returns the code of the first failure of
 * the file, also if it was of an earlier text; nothing is written after a failure. Fault point: samples.write,
 * before each write, on the thread of the file. */
int sample_file_append(struct sample_file *f, const char *text, size_t n, struct err *err);
/* Writes the queue. Lines that the storage does not take within SAMPLE_FILE_CLOSE_MS are reported to on_loss;
 * the thread then ends when the storage answers. NULL is allowed. */
void sample_file_close(struct sample_file *f);

#endif
