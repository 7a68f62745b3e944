# SPDX-License-Identifier: BSD-3-Clause
"""English sentences for the demonstration: eight subjects, six each, some near paraphrases."""

SENTENCES = (
    # weather
    "The forecast promises heavy rain across the northern valleys tomorrow.",
    "Tomorrow it is expected to pour in the valleys up north.",
    "A dry, sunny week is ahead for most of the coast.",
    "Snow closed the mountain pass for the third day in a row.",
    "The wind picked up so quickly that the ferry had to turn back.",
    "Fog covered the runway and every morning flight was late.",
    # cooking
    "Whisk the eggs with sugar until the mixture turns pale.",
    "Beat sugar and eggs together until they are light in colour.",
    "Let the bread dough rise for two hours in a warm place.",
    "She adds a pinch of cinnamon to her tomato sauce.",
    "The soup tastes better on the second day.",
    "Fry the onions slowly or they will burn before they soften.",
    # computing
    "The program crashes when the configuration file is empty.",
    "An empty settings file makes the application stop with an error.",
    "Our database answers most queries in under ten milliseconds.",
    "He rewrote the parser so that it needs only one pass.",
    "Smaller number formats let a neural network fit into less memory.",
    "The network connection dropped during the software update.",
    # sport
    "The goalkeeper saved two penalties in the final minutes.",
    "Two late penalty kicks were stopped by the keeper.",
    "She ran the marathon in just under three hours.",
    "The home team lost its captain to a knee injury.",
    "Children learn to swim at the lake every summer.",
    "A record crowd watched the chess final in silence.",
    # medicine
    "The doctor recommended rest and plenty of fluids.",
    "Drink a lot and stay in bed, her physician told her.",
    "The vaccine must be kept at a very low temperature.",
    "Regular exercise lowers the risk of heart disease.",
    "The surgeon explained the operation to the family.",
    "A new test detects the infection within an hour.",
    # money
    "The central bank raised interest rates for the second time this year.",
    "Borrowing became more expensive after another rate increase.",
    "He forgot to pay the electricity bill again.",
    "The company's profit fell although it sold more cars.",
    "They saved for ten years to buy a small house.",
    "Investors were surprised by the sudden drop in oil prices.",
    # travel
    "The night train to the capital leaves at a quarter past nine.",
    "There is a sleeper service to the capital at 9:15 in the evening.",
    "We lost our luggage somewhere between the two airports.",
    "The old bridge is the most photographed place in town.",
    "You need a visa to stay longer than three months.",
    "The hotel room looked nothing like the pictures.",
    # nature
    "The owl hunts at night and sleeps in a hollow tree.",
    "By day the owl rests inside a tree; after dark it goes hunting.",
    "Bees dance to tell each other where the flowers are.",
    "The river has changed its course twice in a century.",
    "Wolves returned to the forest after the fences were removed.",
    "Most deserts are cold at night because the air is so dry.",
)
