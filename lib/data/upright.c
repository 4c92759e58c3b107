/* upright.c - turns images by the orientation of Exif. The numbers 1 to 8 state where the first row and the first column of the
 * stored image are to be shown:
 *
 *   1 top, left      2 top, right    3 bottom, right    4 bottom, left
 *   5 left, top      6 right, top    7 right, bottom    8 left, bottom */
#include <string.h>

#include "data/image.h"

/* Coordinates (x, y) of the stored image are those of the upright image, exchanged from 5 on, and then counted from the other
 * end: x for 2, 3, 7, 8, y for 3, 4, 6, 7. */
static bool is_exchanged(uint32_t orientation)
{
    return orientation >= 5;
}

static bool is_from_right(uint32_t orientation)
{
    return orientation == 2 || orientation == 3 || orientation >= 7;
}

static bool is_from_bottom(uint32_t orientation)
{
    return orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
}

void upright_size(uint32_t orientation, uint32_t *w, uint32_t *h)
{
    uint32_t was = *w;

    if (!is_exchanged(orientation))
        return;
    *w = *h;
    *h = was;
}

void upright_rect_stored(uint32_t orientation, uint32_t w, uint32_t h, struct image_rect *rect)
{
    struct image_rect was = *rect;

    if (is_exchanged(orientation))
        *rect = (struct image_rect){ was.y, was.x, was.h, was.w };
    if (is_from_right(orientation))
        rect->x = w - rect->x - rect->w;
    if (is_from_bottom(orientation))
        rect->y = h - rect->y - rect->h;
}

void upright_part(uint32_t orientation, uint32_t w, uint32_t h, double part[4])
{
    double x = is_from_right(orientation) ? w - part[0] - part[2] : part[0];
    double y = is_from_bottom(orientation) ? h - part[1] - part[3] : part[1];
    double pw = part[2], ph = part[3];

    part[0] = is_exchanged(orientation) ? y : x;
    part[1] = is_exchanged(orientation) ? x : y;
    part[2] = is_exchanged(orientation) ? ph : pw;
    part[3] = is_exchanged(orientation) ? pw : ph;
}

void upright_copy(uint32_t orientation, const struct image_pixels *from, uint8_t *out)
{
    uint32_t w = from->w, h = from->h, c = from->c;
    bool exchanged = is_exchanged(orientation);
    ptrdiff_t right = c, down = (ptrdiff_t)w * c; /* steps in the stored image */
    const uint8_t *first = from->at;

    if (is_from_right(orientation)) {
        first += (size_t)(w - 1) * c;
        right = -right;
    }
    if (is_from_bottom(orientation)) {
        first += (size_t)(h - 1) * w * c;
        down = -down;
    }
    upright_size(orientation, &w, &h);
    for (uint32_t y = 0; y < h; y++) {
        const uint8_t *at = first + (ptrdiff_t)y * (exchanged ? right : down);

        for (uint32_t x = 0; x < w; x++, at += exchanged ? down : right, out += c)
            memcpy(out, at, c);
    }
}
