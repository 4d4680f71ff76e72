/*
 * A motor board that speaks PROTOCOL.md: counts two encoders, drives one motor, and takes the voltage away by itself.
 *
 * Three things stand between a fault and a voltage, each without the ones before it:
 *   guard.c   a timer interrupt cuts the motor when commands stop or a contact opens;
 *   here      the chip's own watchdog restarts everything when this loop or that interrupt hangs;
 *   the pins  of a chip in reset are inputs, and a resistor at the bridge pulls its PWM input to ground.
 */
#include <avr/interrupt.h>
#include <avr/sleep.h>
#include <avr/wdt.h>

#include "board.h"
#include "encoders.h"
#include "guard.h"
#include "motor.h"
#include "protocol.h"
#include "serial.h"

/* After a restart by the watchdog it still runs, with its shortest time: switched off before anything else happens. */
static void forget_watchdog(void) __attribute__((naked, used, section(".init3")));
static void forget_watchdog(void)
{
    MCUSR = 0;
    wdt_disable();
}

/* Until a byte or a millisecond has come. Looking and falling asleep are one step: nothing comes in between. */
static void rest(uint8_t seen_ms)
{
    cli();
    if (!serial_has_byte() && guard_milliseconds() == seen_ms) {
        sleep_enable();
        sei();
        sleep_cpu();
        sleep_disable();
    }
    sei();
}

int main(void)
{
    motor_start();
    encoders_start();
    guard_start();
    serial_start();
    set_sleep_mode(SLEEP_MODE_IDLE);
    /* 16 ms: less than a control period. */
    wdt_enable(WDTO_15MS);
    sei();

    uint8_t seen_ms = guard_milliseconds();
    for (;;) {
        while (serial_has_byte())
            protocol_take(serial_read());
        /* Fed only as the guard's interrupt goes on: if either stops, the chip restarts. */
        if (guard_milliseconds() != seen_ms) {
            seen_ms = guard_milliseconds();
            wdt_reset();
            protocol_keep_up();
        }
        rest(seen_ms);
    }
}
