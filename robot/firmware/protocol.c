#include "protocol.h"

#include <stdbool.h>
#include <string.h>
#include <util/atomic.h>

#include "board.h"
#include "encoders.h"
#include "frames.h"
#include "guard.h"
#include "motor.h"
#include "serial.h"

#define HELLO 0x01
#define CONFIGURE 0x02
#define POLL 0x03
#define DRIVE 0x04
#define STOP 0x05
#define ANSWER 0x80
#define INFO (ANSWER | HELLO)
#define CONFIGURED (ANSWER | CONFIGURE)
#define STATE (ANSWER | POLL)

/* The guard has the other bits. */
#define FLAG_ENABLED 0x01
#define FLAG_SLIPPED 0x08

#define COUNTER_BITS 32
#define NAME_BYTES 16
_Static_assert(sizeof(FIRMWARE_NAME) <= NAME_BYTES + 1, "FIRMWARE_NAME has more than 16 characters");

static bool enabled;
static uint16_t watchdog_ms, limit_mv, last_command;
/* On the board's clock, as of the last time that somebody looked. */
static uint32_t time_ms;
static uint16_t time_ticks;

static uint8_t *put16(uint8_t *to, uint16_t value)
{
    *to++ = (uint8_t)value;
    *to++ = value >> 8;
    return to;
}

static uint8_t *put32(uint8_t *to, uint32_t value)
{
    return put16(put16(to, (uint16_t)value), value >> 16);
}

static uint16_t get16(const uint8_t *from)
{
    return from[0] | (uint16_t)from[1] << 8;
}

static void answer(uint8_t type, uint16_t sequence, const uint8_t *payload, uint8_t n)
{
    packet_t packet = {PROTOCOL_VERSION, type, sequence, payload, n};
    uint8_t line[MOST_LINE_BYTES];
    serial_write(line, frames_make(&packet, line));
}

void protocol_keep_up(void)
{
    uint8_t milliseconds;
    encoder_counts_t counts;
    /* Counters and clock of one moment. */
    ATOMIC_BLOCK(ATOMIC_RESTORESTATE)
    {
        counts = encoders_latch();
        time_ticks = guard_ticks_since();
        milliseconds = guard_milliseconds();
    }
    encoders_extend(counts);
    time_ms += (uint8_t)(milliseconds - (uint8_t)time_ms);
}

static void send_info(uint16_t sequence)
{
    uint8_t payload[3 + NAME_BYTES] = {COUNTER_BITS};
    uint8_t *name = put16(payload + 1, VOLTAGE_LIMIT_MV);
    memcpy(name, FIRMWARE_NAME, sizeof(FIRMWARE_NAME) - 1);
    answer(INFO, sequence, payload, sizeof(payload));
}

static void send_configured(uint16_t sequence)
{
    uint8_t payload[4];
    put16(put16(payload, watchdog_ms), limit_mv);
    answer(CONFIGURED, sequence, payload, sizeof(payload));
}

static void send_state(uint16_t sequence)
{
    uint8_t payload[17];
    protocol_keep_up();
    uint8_t flags = guard_flags() | (enabled ? FLAG_ENABLED : 0) | (encoders_slipped() ? FLAG_SLIPPED : 0);
    uint8_t *to = put32(payload, 1000 * time_ms + TICK_US * (uint32_t)time_ticks);
    to = put32(to, encoders_cart());
    to = put32(to, encoders_pole());
    to = put16(to, motor_voltage_mv());
    to = put16(to, last_command);
    *to = flags;
    answer(STATE, sequence, payload, sizeof(payload));
}

static void configure(const packet_t *packet)
{
    guard_release();
    encoders_clear_slip();
    uint16_t asked_ms = get16(packet->payload), asked_mv = get16(packet->payload + 2);
    watchdog_ms = asked_ms < 1 ? 1 : asked_ms > LONGEST_SILENCE_MS ? LONGEST_SILENCE_MS : asked_ms;
    limit_mv = asked_mv > VOLTAGE_LIMIT_MV ? VOLTAGE_LIMIT_MV : asked_mv;
    last_command = packet->sequence;
    enabled = true;
    send_configured(packet->sequence);
}

static void drive(const packet_t *packet)
{
    uint16_t newer_by = packet->sequence - last_command;
    if (!enabled || newer_by == 0 || newer_by > 32767)
        return;
    last_command = packet->sequence;
    int16_t voltage_mv = (int16_t)get16(packet->payload), limit = (int16_t)limit_mv;
    if (voltage_mv > limit)
        voltage_mv = limit;
    else if (voltage_mv < -limit)
        voltage_mv = -limit;
    guard_drive(motor_steps(voltage_mv), watchdog_ms);
}

static void stop(const packet_t *packet)
{
    guard_release();
    last_command = packet->sequence;
    send_state(packet->sequence);
}

/* Another version's HELLO is answered in ours: only so can the computer say what is wrong. */
static bool is_for_us(const packet_t *packet)
{
    static const uint8_t payload_bytes[] = {[HELLO] = 0, [CONFIGURE] = 4, [POLL] = 0, [DRIVE] = 2, [STOP] = 0};
    if (packet->type < HELLO || packet->type > STOP || packet->payload_bytes != payload_bytes[packet->type])
        return false;
    return packet->version == PROTOCOL_VERSION || packet->type == HELLO;
}

void protocol_take(uint8_t byte)
{
    packet_t packet;
    if (!frames_take(byte, &packet) || !is_for_us(&packet))
        return;
    switch (packet.type) {
    case HELLO:
        send_info(packet.sequence);
        break;
    case CONFIGURE:
        configure(&packet);
        break;
    case POLL:
        send_state(packet.sequence);
        break;
    case DRIVE:
        drive(&packet);
        break;
    case STOP:
        stop(&packet);
        break;
    }
}
