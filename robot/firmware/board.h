/*
 * Pins and settings. docs/wiring.md has the same pins in a table, with what is soldered to them.
 *
 * All four encoder channels lie on the low half of one port: one interrupt reads them at the same moment.
 */
#ifndef BOARD_H
#define BOARD_H

#include <avr/io.h>

/* Settings of the build; see the Makefile. */
#if !defined(F_CPU) || !defined(BAUD_RATE) || !defined(SUPPLY_MV) || !defined(VOLTAGE_LIMIT_MV) || \
    !defined(LONGEST_SILENCE_MS)
#error "F_CPU, BAUD_RATE, SUPPLY_MV, VOLTAGE_LIMIT_MV and LONGEST_SILENCE_MS come from the Makefile"
#endif
#if VOLTAGE_LIMIT_MV < 1 || VOLTAGE_LIMIT_MV > SUPPLY_MV
#error "VOLTAGE_LIMIT_MV must lie between 1 and SUPPLY_MV"
#endif
#if SUPPLY_MV > 30000
#error "SUPPLY_MV: DRIVE frames hold 16 bits, and no motor of such a cart takes more than 30 V"
#endif
#if LONGEST_SILENCE_MS < 1 || LONGEST_SILENCE_MS > 1000
#error "LONGEST_SILENCE_MS must lie between 1 and 1000"
#endif
#if F_CPU != 16000000UL
#error "Timers and line are set up for 16 MHz"
#endif

#if defined(__AVR_ATmega328P__)

#define FIRMWARE_NAME "nopg ATmega328P"

/* Encoders: A0 cart A, A1 cart B, A2 pole A, A3 pole B. */
#define ENCODER_PORT PORTC
#define ENCODER_PINS PINC
#define ENCODER_INTERRUPT PCINT1_vect
#define ENCODER_INTERRUPT_ENABLE (1 << PCIE1)
#define ENCODER_INTERRUPT_MASK PCMSK1

/* Motor: D9 PWM (OC1A), D8 direction. */
#define MOTOR_PORT PORTB
#define MOTOR_DDR DDRB
#define MOTOR_PWM_PIN PB1
#define MOTOR_DIRECTION_PIN PB0

/* Contacts: D4 and D5 limit switches, D6 emergency stop, D7 the bridge's fault output. */
#define SWITCH_PORT PORTD
#define SWITCH_PINS PIND
#define LIMIT_NEGATIVE_PIN PD4
#define LIMIT_POSITIVE_PIN PD5
#define EMERGENCY_STOP_PIN PD6
#define BRIDGE_FAULT_PIN PD7

#define SERIAL_RECEIVED_INTERRUPT USART_RX_vect

#elif defined(__AVR_ATmega2560__)

#define FIRMWARE_NAME "nopg ATmega2560"

/* Encoders: D53 cart A, D52 cart B, D51 pole A, D50 pole B. */
#define ENCODER_PORT PORTB
#define ENCODER_PINS PINB
#define ENCODER_INTERRUPT PCINT0_vect
#define ENCODER_INTERRUPT_ENABLE (1 << PCIE0)
#define ENCODER_INTERRUPT_MASK PCMSK0

/* Motor: D11 PWM (OC1A), D12 direction. */
#define MOTOR_PORT PORTB
#define MOTOR_DDR DDRB
#define MOTOR_PWM_PIN PB5
#define MOTOR_DIRECTION_PIN PB6

/* Contacts: D22 and D23 limit switches, D24 emergency stop, D25 the bridge's fault output. */
#define SWITCH_PORT PORTA
#define SWITCH_PINS PINA
#define LIMIT_NEGATIVE_PIN PA0
#define LIMIT_POSITIVE_PIN PA1
#define EMERGENCY_STOP_PIN PA2
#define BRIDGE_FAULT_PIN PA3

#define SERIAL_RECEIVED_INTERRUPT USART0_RX_vect

#else
#error "Pins are known for the ATmega328P (Uno) and the ATmega2560 (Mega)"
#endif

#endif
