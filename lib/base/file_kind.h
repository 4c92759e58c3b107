/* file_kind.h - recognizes files of common formats by their first bytes, for messages about files that are not of the
 * expected format: a packed file, the error page of a download, a pointer of Git LFS. Pure; threads: any. */
#ifndef BASE_FILE_KIND_H
#define BASE_FILE_KIND_H

#include <stddef.h>
#include <stdint.h>

enum { FILE_KIND_BYTES = 265 /* of the beginning of a file, as far as they exist, are enough */ };

struct file_kind {
    const char *what;   /* "a bzip2 stream" */
    const char *remedy; /* "unpack it with bunzip2"; NULL: depends on the format that was expected */
};

/* Returns the format of a file that begins with these bytes, NULL: not known. The result is static. A file of another
 * format may begin in the same way by chance, with at least three bytes. */
const struct file_kind *file_kind_of(const uint8_t *head, size_t n);

#endif
