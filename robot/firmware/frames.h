/* Frames of PROTOCOL.md: CRC-32 and byte stuffing. No hardware in here. */
#ifndef FRAMES_H
#define FRAMES_H

#include <stdbool.h>
#include <stdint.h>

#ifndef PROTOCOL_VERSION
#define PROTOCOL_VERSION 1
#endif

/* Between two zero bytes, at most. */
#define MOST_STUFFED_BYTES 64
#define HEADER_BYTES 4
#define CRC_BYTES 4
/* Of all types: INFO's. */
#define MOST_PAYLOAD_BYTES 19

typedef struct {
    uint8_t version;
    uint8_t type;
    uint16_t sequence;
    const uint8_t *payload;
    uint8_t payload_bytes;
} packet_t;

/*
 * One byte from the line.
 *
 * packet: filled in when this byte ended a sound frame; its payload holds until the next call
 * return: whether it did
 */
bool frames_take(uint8_t byte, packet_t *packet);

/*
 * A packet as bytes for the line, with a zero byte before and after it.
 *
 * line: room for MOST_LINE_BYTES
 * return: how many bytes
 */
#define MOST_LINE_BYTES (HEADER_BYTES + MOST_PAYLOAD_BYTES + CRC_BYTES + 3)
uint8_t frames_make(const packet_t *packet, uint8_t *line);

#endif
