/* What the board does with each frame: the rules of PROTOCOL.md, "What the board does". */
#ifndef PROTOCOL_H
#define PROTOCOL_H

#include <stdint.h>

/* Follow counters and clock; at least every 100 ms. */
void protocol_keep_up(void);

/* One byte from the line; answers go out from here. */
void protocol_take(uint8_t byte);

#endif
