"""What prompts are put together from: topics, tasks about them, and first words of user turns. All written by hand."""

from __future__ import annotations

TOPICS = """
volcanoes; photosynthesis; the water cycle; black holes; plate tectonics; vaccines; the human heart; sleep; migraines;
honey bees; coral reefs; whales; wolves; penguins; migratory birds; mushrooms; redwood trees; rain forests; deserts;
the Arctic; glaciers; hurricanes; earthquakes; the moon; Mars; the Milky Way; telescopes; satellites; rockets;
gravity; magnetism; electricity; lightning; sound waves; rainbows; lasers; mirrors; batteries; solar panels; wind
turbines; nuclear power; electric cars; trains; bicycles; airplanes; ships; bridges; skyscrapers; concrete; steel;
glass; plastic; paper; ink; the printing press; the alphabet; handwriting; libraries; museums; public schools;
universities; homework; online courses; learning a language; memory; attention; habits; procrastination; anxiety;
happiness; anger; jealousy; friendship; marriage; parenting; grandparents; twins; adoption; pets; dogs; cats; horses;
chickens; farming; irrigation; rice; wheat; potatoes; tomatoes; coffee; tea; chocolate; sugar; salt; olive oil; bread;
cheese; noodles; soup; spices; street food; restaurants; cooking for one; fasting; vitamins; protein; hydration;
running; swimming; yoga; chess; football; basketball; tennis; the Olympics; mountain climbing; camping; fishing;
sailing; photography; painting; sculpture; pottery; origami; knitting; fashion; jewelry; architecture; gardens;
furniture; music theory; the piano; the violin; jazz; opera; hip hop; folk songs; dance; theater; cinema;
documentaries; comics; video games; board games; puzzles; magic tricks; poetry; short stories; novels; fairy tales;
myths; ghosts; dragons; robots; time travel; aliens; pirates; knights; samurai; vikings; pharaohs; the Roman Empire;
ancient Greece; the Silk Road; the Renaissance; the Industrial Revolution; the French Revolution; the Cold War; the
Great Depression; the space race; colonialism; democracy; elections; constitutions; courts; juries; taxes; inflation;
interest rates; the stock market; insurance; mortgages; budgeting; saving money; supply and demand; monopolies; trade;
tariffs; unemployment; minimum wages; unions; start-ups; marketing; advertising; customer service; negotiation;
leadership; teamwork; meetings; remote work; resumes; job interviews; public speaking; email; time management; project
planning; ethics; free will; justice; human rights; privacy; censorship; propaganda; journalism; social media;
smartphones; the internet; encryption; passwords; computer viruses; operating systems; databases; compilers;
algorithms; recursion; sorting; hash tables; binary search; graphs; neural networks; decision trees; search engines;
recommendation systems; cloud computing; open source software; version control; unit tests; web servers; APIs;
probability; statistics; averages; correlation; prime numbers; fractions; percentages; geometry; triangles; circles;
algebra; calculus; derivatives; integrals; matrices; logic; paradoxes; infinity; cells; DNA; genes; evolution;
fossils; dinosaurs; bacteria; viruses; antibiotics; the immune system; the brain; the lungs; the liver; bones;
muscles; skin; eyes; teeth; blood; hormones; diabetes; asthma; allergies; cancer; surgery; hospitals; nurses; atoms;
molecules; acids; metals; crystals; water; oxygen; carbon dioxide; climate change; recycling; pollution; waste;
drinking water; rivers; lakes; oceans; tides; islands; caves; mountains; maps; time zones; calendars; clocks; money;
gold; diamonds; silk; cotton; wool; leather; perfume; soap; candles; lighthouses; castles; markets; festivals;
weddings; funerals; birthdays; holidays; gifts; letters; diaries; dreams; jokes; proverbs; superstitions; religion;
Buddhism; Stoicism; existentialism; utilitarianism; psychology; sociology; anthropology; archaeology; linguistics;
translation; accents; sign language; body language; cities; suburbs; villages; public transport; traffic; parking;
housing; immigration; tourism; hotels; airports; beaches; national parks; zoos; aquariums; circuses; fireworks
"""

TASKS = """
Explain how {t} work to a ten-year-old.|What is the history of {t}?|Give me five interesting facts about {t}.
Write a short essay about {t}.|Write a poem about {t}.|Write a haiku about {t}.|Write a limerick about {t}.
Write a short story in which {t} play an important part.|Write the opening paragraph of a novel about {t}.
Write a blog post about {t} with a catchy title.|Write a speech about {t} for a school assembly.
Write a letter to a friend about {t}.|Write an email to my manager asking for support on a project about {t}.
Write a news article about {t}.|Write a product description related to {t}.
Write a dialogue about {t} between two friends.|Write a review of a documentary about {t}.
Write an advertisement that has to do with {t}.|Write song lyrics about {t}.
Describe {t} vividly, using all five senses.|Describe a day in the life of someone whose work is about {t}.
What are the advantages and disadvantages of {t}?|Why do {t} matter?|What are common misconceptions about {t}?
How have {t} changed over the last hundred years?|Compare {t} and {u}.|What do {t} and {u} have in common?
What is the difference between {t} and {u}?|How are {t} connected to {u}?
Which is more important, {t} or {u}, and why?|List ten words related to {t} and define each of them.
Create a quiz with five questions about {t} and give the answers.
Give me a step-by-step guide to getting started with {t}.|What should a beginner know about {t}?
What are the main theories about {t}?|What are the key terms in the study of {t}?
Who are important people in the field of {t}?|Summarize what is known about {t} in three sentences.
Summarize the debate about {t}.|Make an outline for a lecture on {t}.
Design a lesson plan about {t} for a class of fifteen students.|Suggest three research questions about {t}.
How would you explain {t} to someone from the year 1700?|What would the world be like without {t}?
What is the future of {t}?|What is the role of {t} in the economy?|How do {t} affect our health?
How do {t} affect the environment?|How do different cultures see {t}?|What can {t} teach us about {u}?
Tell me a joke about {t}.|Tell me a riddle about {t}.
Imagine you are an expert on {t}. What would you tell a young student?|Pretend to be a pirate and talk about {t}.
You are a teacher. Explain {t} with an analogy.|Act as a travel guide and tell me about {t}.
Act as a historian and describe the origins of {t}.
You are a detective investigating a case that involves {t}. Describe your first day.
Pretend you are a robot who has just discovered {t}. What do you think?
Take the role of a doctor and answer a patient's question about {t}.
You are a stand-up comedian. Do a short routine about {t}.
Imagine you are a chef inspired by {t}. Describe your new dish.|Speak as Shakespeare might about {t}.
You are an engineer. What problems come with {t}, and how would you solve them?
What questions should I ask an expert about {t}?|Give arguments for and against spending public money on {t}.
Do you think {t} are overrated? Explain your reasoning.|Think step by step: what happens if {t} disappear tomorrow?
Is it true that {t} cause problems for {u}? Explain your reasoning.
Rank the following by importance and explain: {t}, {u}, {v}.
Which of these does not belong with the others: {t}, {u}, {v}? Explain why.
Put these in alphabetical order: {t}, {u}, {v}.|Classify the following as natural or made by people: {t}, {u}, {v}.
Create a table with three columns comparing {t}, {u} and {v}.
Return a JSON object with the keys "name", "category" and "description" for {t}.
Write a CSV with five rows of data about {t}.|Make a bullet list of the main points about {t}.
Write a tweet about {t}.|Write three headlines about {t}.
Rewrite the sentence "I have never understood {t}" in a formal style.|Give me a metaphor for {t}.
Give a one-word answer: are {t} useful?|Plan a weekend trip around the theme of {t}.|Recommend three books about {t}.
What equipment do you need for {t}?|Write a persuasive paragraph that convinces the reader to learn about {t}.
Write a conversation between a student and a professor about {t}.|Write a short scene for a play about {t} and {u}.
Invent a superhero whose powers come from {t}.|Invent a holiday that celebrates {t}.
What are the safety rules for {t}?|How are {t} measured?|What are the different types of {t}?
What are the causes and effects of {t}?|How did {t} shape modern society?|What ethical questions do {t} raise?
How do scientists study {t}?|How do governments deal with {t}?|Explain the science behind {t}.
Explain {t} in simple terms.|Explain {t} in detail.|Can you tell me about {t}?|Tell me more about {t}.
I want to learn about {t}. Where do I start?|My friend says {t} are boring. How do I change her mind?
Help me understand {t}.
"""

CODE_TASKS = """
reverses a string; checks whether a number is prime; counts the words in a file; finds the largest number in a list;
removes duplicates from a list; merges two sorted lists; computes the factorial of a number; sorts a list of names;
checks whether a word is a palindrome; finds all divisors of a number; converts Celsius to Fahrenheit; flattens a
nested list; computes the mean and the median of a list; counts vowels in a sentence; finds the second largest
element; rotates an array by k places; checks whether two strings are anagrams; implements binary search; implements a
stack; implements a queue with two stacks; implements bubble sort; implements quicksort; implements a linked list;
reads a CSV file and prints a column; parses a date; validates an email address; generates a random password; computes
the greatest common divisor; prints a multiplication table; converts a decimal number to binary; finds the shortest
path in a grid; traverses a binary tree in order; computes the depth of a tree; checks for balanced parentheses; finds
the first repeated character; groups words by length; downloads a web page; sends a GET request and parses JSON;
counts how often each word occurs; computes compound interest; simulates rolling two dice; plays tic-tac-toe; solves a
quadratic equation; multiplies two matrices; transposes a matrix; finds the missing number in a sequence; prints a
pyramid of stars; caches the results of a function; logs errors to a file; renames all files in a folder; computes the
distance between two points; finds common elements of two lists; splits a list into chunks; converts a Roman numeral
to an integer; finds the longest word in a text
"""

LANGUAGES = "Python; Python; Python; Python; JavaScript; Java; C++; C; Go; Rust; SQL; Bash; HTML and CSS; R; TypeScript"

CODE_FORMS = """
Write a {l} program that {c}.|Write a function in {l} that {c}.|How do I write {l} code that {c}?
Implement in {l} a function which {c}. Include comments.|Give me an example of {l} code that {c}, with an explanation.
Write a {l} function that {c} and test it.|I need a {l} script that {c}. Can you help?
Explain step by step how to write a program that {c}.|What is the time complexity of a function that {c}?
Write a class in {l} with a method that {c}.
"""

MATH_FORMS = """
What is {a} plus {b}?|What is {a} times {b}?|Compute {a} - {b} + {c}.|Solve for x: {a}x + {b} = {c}.
Solve the equation x^2 - {a}x + {b} = 0.|A train travels {a} km in {b} hours. What is its average speed?
A shirt costs ${a} and is on sale for {b}% off. What is the new price?
{n} has {a} apples and gives {b} to a friend. How many are left?
A rectangle has length {a} and width {b}. Find its area and its perimeter.
If {n} saves ${a} a week, how long does it take to save ${c}?
The sum of two numbers is {c} and their difference is {a}. What are the numbers?
A circle has radius {a}. What is its area?|What is the probability of rolling a sum of {d} with two dice?
Find the average of {a}, {b} and {c}.
{n} is {a} years old, and is twice as old as {m} was {d} years ago. How old is {m}?|What is {b}% of {c}?
Find the next number: {a}, {b}, {c}, ...
A tank holds {c} liters and drains at {d} liters a minute. How long until it is empty?|Simplify the fraction {a}/{c}.
Is {c} a prime number? Show your work.|If f(x) = {a}x^2 + {b}x + {c}, what is f({d})?
Find the derivative of f(x) = {a}x^3 - {b}x.|A triangle has sides {a}, {b} and {d}. Is it a right triangle?
There are {a} students in a class and {b} of them play an instrument. What fraction does not?
Convert {a} miles to kilometers.|{n} reads {d} pages a day. How many days does a book of {c} pages take?
A store sold {a} books on Monday and {b} on Tuesday. How many in total?
{n} is taller than {m}. {m} is taller than {o}. Who is the shortest?
{n} stands in front of {m}, and {o} stands behind {m}. Who is in the middle?
"""

NAMES = (
    "Anna; Ben; Carla; David; Elena; Farid; Grace; Hiro; Ivan; Julia; Kofi; Lena; Marco; Nadia; Omar; Priya; Sam; Tom"
)

SOURCE_FORMS = """
Summarize the following text in one sentence: "{s}"|Extract all names and places from this text: "{s}"
What is the main idea of this passage? "{s}"|Rewrite the following paragraph for a child: "{s}"
Read the passage and list its key points. "{s}"|Is the tone of this text positive or negative? "{s}"
Correct any mistakes in the following text and explain them: "{s}"
Write three questions that this passage answers: "{s}"
Given the following text, return a list of the nouns in JSON: "{s}"|Continue this text: "{s}"
Give this passage a title: "{s}"|Extract the facts from the text below as bullet points. "{s}"
Translate the following text into simple English: "{s}"|{s} Can you explain this further?
Is the following statement true? "{s}" Give your reasons.|Write a short story that begins like this: "{s}"
{s} What are the consequences?|{s} Do you agree? Why or why not?|{s} What should I do next?
Someone told me: "{s}" What is the evidence for that?|Write a reply to this message: "{s}"
Turn this into a dialogue between two people: "{s}"|Rewrite this as a poem: "{s}"|Argue against the following: "{s}"
Explain the terms used in this text: "{s}"|{s} Give me an example.|{s} Solve this step by step.
What would a skeptic say about this? "{s}"
Evaluate the following text on a scale from 1 to 5 for clarity and explain your score: "{s}"
Find the errors in this reasoning: "{s}"|Describe a scene in a film in which someone says: "{s}"
Write a headline and a first paragraph for this: "{s}"|Make this more formal: "{s}"
Imagine you are a professor. A student writes: "{s}" What do you answer?|Make this shorter: "{s}"|{s}|{s}
{s} Write a program for this.
"""

STARTS = """
Write a|Write an essay on|Write a short story about|Write a poem that|Write a Python|Write a function
Write a letter to|Write an email|Compose a|Draft a|Create a|Design a|Develop a|Describe a|Describe how|Describe the
Explain how|Explain why|Explain the concept of|Explain the difference between|What is the|What are the|What are some
What would happen if|What does it mean|What do you think|How do I|How can|How does|How would you|How many|How much
Why do|Why is|Why did|When did|Where can|Who was|Who is|Which of|Can you|Could you|Please|Help me|I want to|I need
I have a|I am a|I'm trying to|My|Imagine you are|Imagine that|Pretend to be|Pretend you are|You are a|You are an
Act as a|Act like|Suppose|Assume that|Let's|If a|If you|If I|Given the following|Given a|Given an array|Given that
Based on|Read the following|Extract|Identify|Classify|Find the|Solve|Solve the|Calculate|Compute|Determine|Prove
Show that|Evaluate|Simplify|Convert|Translate|Summarize|Paraphrase|Rewrite|Edit|Improve|Correct|Compare|Contrast
Discuss|Analyze|Argue|Implement|def |class |import |Fix the|Debug|Optimize|Using|In Python|In JavaScript|In C++|In the
A car|A train|A farmer|A company|A student|A man|A woman|There are|The following|The sum|The average|The first|The
Consider|Provide|Provide an example|Give me|Give an example|List|List the|Name|Outline|Plan|Suggest|Recommend|Tell me
Tell me about|Teach me|Make a|Generate|Come up with|Brainstorm|Choose|Rank|Sort|Count|Complete|Continue|Fill in|Answer
Define|Is it|Is there|Are there|Do you|Does|Did|Should|Would|Will|During|After|Before|As a|As an|For a|To|On|At|From
With|One|Two|Three|John|Sarah|Alice|Tom|Suppose you|Suppose that|It is|We|They|She|He|This|These|Some|Many|Most|People
Scientists|Students|Children|Recently|Today|Yesterday|Once|Hi|Hello|Photosynthesis|Economics|The economy|History
Physics|Chemistry|Biology|Philosophy|Psychology|Art|Music|Literature|Politics|Law|Ethics|Technology
"""


def split(text: str, separator: str) -> tuple[str, ...]:
    """The entries of one of the lists above; line breaks separate as well where ``separator`` is ``|``."""
    joined = text.strip().replace("\n", separator if separator == "|" else " ")
    return tuple(
        entry.strip("\n") if separator == "|" else entry.strip() for entry in joined.split(separator) if entry.strip()
    )
