#include "base/file_kind.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "base/check.h"

enum { TAR_MAGIC_AT = 257 };

static const struct row {
    size_t at; /* offset of the bytes */
    const char *bytes;
    size_t n;
    struct file_kind kind;
} rows[] = {
#define ROW(at, bytes, what, remedy) { at, bytes, sizeof(bytes) - 1, { what, remedy } }
    ROW(4, "1AY&SY", "a bzip2 stream", "unpack it with bunzip2"),
    ROW(0, "\xfd" "7zXZ", "an xz stream", "unpack it with unxz"),
    ROW(0, "\x28\xb5\x2f\xfd", "a zstd stream", "unpack it with unzstd"),
    ROW(0, "\x04\x22\x4d\x18", "an lz4 stream", "unpack it with unlz4"),
    ROW(0, "\xff\x06\0\0sNaPpY", "a snappy stream", "unpack it"),
    ROW(0, "\x1f\x8b\x08", "a gzip stream", "unpack it with gunzip"),
    ROW(0, "7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it with 7z x"),
    ROW(0, "Rar!\x1a\x07", "a RAR archive", "unpack it with unrar x"),
    ROW(TAR_MAGIC_AT, "ustar", "a tar archive", "unpack it with tar -xf, also the files in it if they are packed"),
    ROW(0, "PK\3\4", "a zip archive, as .npz, .pt and .xlsx are", NULL),
    ROW(0, "PAR1", "a Parquet file", NULL),
    ROW(0, "ARROW1", "an Arrow file", NULL),
    ROW(0, "Obj\1", "an Avro file", NULL),
    ROW(0, "\x89HDF\r\n\x1a\n", "an HDF5 file", NULL),
    ROW(0, "\x93NUMPY", "a .npy file", NULL),
    ROW(0, "\xd0\xcf\x11\xe0", "an Excel workbook (.xls)", NULL),
    ROW(0, "SQLite format 3", "an SQLite database", NULL),
    ROW(0, "%PDF-", "a PDF file", NULL),
    ROW(0, "\x89PNG\r\n\x1a\n", "a PNG image", NULL),
    ROW(0, "\xff\xd8\xff", "a JPEG image", NULL),
    ROW(0, "version https://git-lfs", "a pointer of Git LFS", "fetch the file with git lfs pull"),
#undef ROW
};

static const struct file_kind page = {
    "a page in HTML or XML, perhaps the error page of a download", "download the file again, and look at the page for the reason"
};

static bool is_page(const uint8_t *head, size_t n)
{
    static const char *const starts[] = { "<!doctype", "<html", "<head", "<?xml" };
    size_t at = n >= 3 && memcmp(head, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;

    while (at < n && strchr(" \t\r\n", head[at]) != NULL && head[at] != '\0')
        at++;
    for (size_t i = 0; i < COUNT_OF(starts); i++)
        if (n - at >= strlen(starts[i]) &&
            strncasecmp((const char *)head + at, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

const struct file_kind *file_kind_of(const uint8_t *head, size_t n)
{
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (n >= rows[i].at + rows[i].n && memcmp(head + rows[i].at, rows[i].bytes, rows[i].n) == 0)
            return &rows[i].kind;
    return is_page(head, n) ? &page : NULL;
}
