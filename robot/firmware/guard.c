#include "guard.h"

#include <avr/interrupt.h>
#include <stdbool.h>

#include "board.h"
#include "motor.h"

/* Timer 2: 16 MHz / 64 / 250 = 1 kHz. */
#define TICKS_PER_MS 250
/* A contact that opens for a moment must be seen by a computer that asks every few milliseconds. */
#define FAULT_HOLD_MS 100

static volatile uint8_t milliseconds;
/* Bits of STATE. */
static volatile uint8_t contacts = FLAG_FAULT;
static volatile bool expired;
static volatile bool running;
static volatile uint16_t silent_ms, allowed_ms;

/*
 * The main loop and the guard's interrupt must not change these at the same time. Only that one waits: encoder edges do not.
 * A loop that hung in between would be restarted by the chip's watchdog.
 */
static void hold_guard(void)
{
    TIMSK2 = 0;
}

static void let_guard_go(void)
{
    TIMSK2 = 1 << OCIE2A;
}

void guard_start(void)
{
    /* Contacts open when something is wrong, and so does a wire that breaks: they pull to ground, we pull up. */
    SWITCH_PORT |= (1 << LIMIT_NEGATIVE_PIN) | (1 << LIMIT_POSITIVE_PIN) | (1 << EMERGENCY_STOP_PIN) | (1 << BRIDGE_FAULT_PIN);
    OCR2A = TICKS_PER_MS - 1;
    TCCR2A = 1 << WGM21;
    TCCR2B = 1 << CS22;
    let_guard_go();
}

static uint8_t read_contacts(void)
{
    static uint8_t fault_ms;
    uint8_t pins = SWITCH_PINS, flags = 0;
    if (pins & (1 << LIMIT_NEGATIVE_PIN))
        flags |= FLAG_LIMIT_NEGATIVE;
    if (pins & (1 << LIMIT_POSITIVE_PIN))
        flags |= FLAG_LIMIT_POSITIVE;
    /* No cart is at both ends. The bridge's output is low when it is hot or short-circuited. */
    if ((pins & (1 << EMERGENCY_STOP_PIN)) || !(pins & (1 << BRIDGE_FAULT_PIN)) ||
        flags == (FLAG_LIMIT_NEGATIVE | FLAG_LIMIT_POSITIVE))
        fault_ms = FAULT_HOLD_MS;
    if (fault_ms) {
        fault_ms--;
        flags |= FLAG_FAULT;
    }
    return flags;
}

/* Towards a switch that is open there is no voltage; away from it there is. */
static bool may_drive(int8_t direction)
{
    uint8_t flags = contacts;
    if (expired || (flags & FLAG_FAULT))
        return false;
    return !((direction > 0 && (flags & FLAG_LIMIT_POSITIVE)) || (direction < 0 && (flags & FLAG_LIMIT_NEGATIVE)));
}

/* With interrupts on: encoder edges do not wait for it. Nothing else that runs meanwhile touches the motor. */
ISR(TIMER2_COMPA_vect, ISR_NOBLOCK)
{
    milliseconds++;
    contacts = read_contacts();
    /* Whole milliseconds: up to one early, never late. */
    if (running && ++silent_ms >= allowed_ms) {
        running = false;
        expired = true;
    }
    if (!may_drive(motor_direction()))
        motor_cut();
}

void guard_release(void)
{
    hold_guard();
    motor_cut();
    running = expired = false;
    let_guard_go();
}

void guard_drive(int16_t steps, uint16_t watchdog_ms)
{
    int8_t direction = (steps > 0) - (steps < 0);
    hold_guard();
    if (!expired && !(contacts & FLAG_FAULT)) {
        silent_ms = 0;
        allowed_ms = watchdog_ms;
        running = true;
        motor_set(may_drive(direction) ? steps : 0);
    }
    let_guard_go();
}

uint8_t guard_flags(void)
{
    return contacts | (expired ? FLAG_WATCHDOG_EXPIRED : 0);
}

uint8_t guard_milliseconds(void)
{
    return milliseconds;
}

uint16_t guard_ticks_since(void)
{
    uint8_t ticks = TCNT2;
    /* The counter may have begun anew while interrupts were off: then its millisecond has not been counted yet. */
    if ((TIFR2 & (1 << OCF2A)) && ticks < TICKS_PER_MS / 2)
        return ticks + TICKS_PER_MS;
    return ticks;
}
