#include "frames.h"

/* Half a byte at a time: a table of 256 would be twice as fast, and a kilobyte. */
static const uint32_t crc_of_half[16] = {
    0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC, 0x76DC4190, 0x6B6B51F4, 0x4DB26158, 0x5005713C,
    0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C, 0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C,
};

static uint32_t crc32(const uint8_t *bytes, uint8_t n)
{
    uint32_t crc = 0xFFFFFFFF;
    while (n--) {
        crc ^= *bytes++;
        crc = (crc >> 4) ^ crc_of_half[crc & 0x0F];
        crc = (crc >> 4) ^ crc_of_half[crc & 0x0F];
    }
    return ~crc;
}

/*
 * Undo COBS in place.
 *
 * return: length of the packet, 0 if a length points beyond the end
 */
static uint8_t unstuff(uint8_t *bytes, uint8_t n)
{
    uint8_t from = 0, to = 0;
    while (from < n) {
        uint8_t length = bytes[from++];
        /* A length counts itself, and there is no zero byte between zero bytes. */
        if (length - 1 > n - from)
            return 0;
        while (--length)
            bytes[to++] = bytes[from++];
        if (from < n)
            bytes[to++] = 0;
    }
    return to;
}

static bool read_packet(const uint8_t *bytes, uint8_t n, packet_t *packet)
{
    if (n < HEADER_BYTES + CRC_BYTES)
        return false;
    n -= CRC_BYTES;
    uint32_t crc = crc32(bytes, n);
    for (uint8_t i = 0; i < CRC_BYTES; i++, crc >>= 8)
        if (bytes[n + i] != (uint8_t)crc)
            return false;
    packet->version = bytes[0];
    packet->type = bytes[1];
    packet->sequence = bytes[2] | (uint16_t)bytes[3] << 8;
    packet->payload = bytes + HEADER_BYTES;
    packet->payload_bytes = n - HEADER_BYTES;
    return true;
}

bool frames_take(uint8_t byte, packet_t *packet)
{
    static uint8_t stuffed[MOST_STUFFED_BYTES];
    static uint8_t n;
    static bool too_long;
    if (byte != 0) {
        if (n == MOST_STUFFED_BYTES)
            too_long = true;
        else
            stuffed[n++] = byte;
        return false;
    }
    bool sound = !too_long && read_packet(stuffed, unstuff(stuffed, n), packet);
    n = 0;
    too_long = false;
    return sound;
}

uint8_t frames_make(const packet_t *packet, uint8_t *line)
{
    uint8_t bytes[HEADER_BYTES + MOST_PAYLOAD_BYTES + CRC_BYTES];
    uint8_t n = HEADER_BYTES;
    bytes[0] = packet->version;
    bytes[1] = packet->type;
    bytes[2] = (uint8_t)packet->sequence;
    bytes[3] = packet->sequence >> 8;
    for (uint8_t i = 0; i < packet->payload_bytes; i++)
        bytes[n++] = packet->payload[i];
    uint32_t crc = crc32(bytes, n);
    for (uint8_t i = 0; i < CRC_BYTES; i++, crc >>= 8)
        bytes[n++] = (uint8_t)crc;

    uint8_t at = 0;
    line[at++] = 0;
    uint8_t length_at = at++;
    for (uint8_t i = 0; i < n; i++) {
        if (bytes[i] == 0) {
            line[length_at] = at - length_at;
            length_at = at++;
        } else {
            line[at++] = bytes[i];
        }
    }
    line[length_at] = at - length_at;
    line[at++] = 0;
    return at;
}
